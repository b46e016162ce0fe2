"""Chains of fully connected layers: recognised in a model, and run for many clients at once.

Parameters and examples are stacked along a first dimension (clients); one batched matrix product serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedlag.net import Model


class Activation(NamedTuple):
    apply: Callable[[Tensor], Tensor]  # in place
    slope: Callable[[Tensor, Tensor], Tensor]  # from the loss's slope along the outputs, and the outputs


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu_, lambda slope, y: torch.ops.aten.threshold_backward(slope, y, 0)),
    nn.Tanh: Activation(torch.tanh_, torch.ops.aten.tanh_backward),
    nn.Sigmoid: Activation(torch.sigmoid_, torch.ops.aten.sigmoid_backward),
}


class Layer(NamedTuple):
    weight: str  # name of a parameter (outputs, inputs)
    bias: str | None  # of one (outputs,)
    activation: Activation | None


Slope = tuple[Layer, int, Tensor]  # a layer, its place, and the loss's slope along its outputs before the activation


class Dense(NamedTuple):
    """activation(x W' + b), layer after layer."""

    layers: tuple[Layer, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for layer in self.layers for name in layer[:2] if name)

    def outputs(self, params: Mapping[str, Tensor], x: Tensor) -> list[Tensor]:
        """Of every layer, from stacked parameters and examples (clients, examples, inputs); the last are the scores."""
        values = []
        for weight, bias, activation in self.layers:
            if bias is None:
                x = torch.bmm(x, params[weight].mT)
            else:
                x = torch.baddbmm(params[bias].unsqueeze(1), x, params[weight].mT)
            if activation is not None:
                x = activation.apply(x)
            values.append(x)
        return values

    def slopes(
        self, params: Mapping[str, Tensor], outputs: list[Tensor], slope: Tensor, names: frozenset[str]
    ) -> Iterator[Slope]:
        """For every layer from the last down to the lowest of `names`. A layer may be changed once it was given."""
        lowest = min(number for number, layer in enumerate(self.layers) if not names.isdisjoint(layer[:2]))
        for number in range(len(self.layers) - 1, lowest - 1, -1):
            layer = self.layers[number]
            if layer.activation is not None:
                slope = layer.activation.slope(slope, outputs[number])
            below = torch.bmm(slope, params[layer.weight]) if number > lowest else slope
            yield layer, number, slope
            slope = below


def chain(model: Model) -> Dense | None:
    """The model as a chain of fully connected layers, where it is one."""
    layers: list[Layer] = []
    flat = False
    for name, module in [*_leaves("body", model.net.body), *_leaves("head", model.net.head)]:
        kind = type(module)
        if isinstance(module, nn.Flatten) and not layers and module.start_dim == 1 and module.end_dim == -1:
            flat = True
        elif kind is nn.Linear and flat:
            layers.append(Layer(f"{name}.weight", None if module.bias is None else f"{name}.bias", None))
        elif kind in ACTIVATIONS and layers and layers[-1].activation is None:
            layers[-1] = layers[-1]._replace(activation=ACTIVATIONS[kind])
        elif kind is not nn.Identity:
            return None
    made = Dense(tuple(layers))
    return made if layers and made.names == {*model.parameter_names, *model.statistic_names} else None


def _leaves(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for key, child in module.named_children():
        yield from _leaves(f"{name}.{key}", child)
