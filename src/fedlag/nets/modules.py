"""Modules for the described architectures.

A layer and its normalisation are registered one after the other, so a normalisation always belongs to the layer
before it. A layer that is normalised has no bias of its own, because the normalisation adds one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlag.net import Net
from fedlag.nets import Plain, Residual
from fedlag.randomness import seeded
from fedlag.tree import stands_for_many

Modules = dict[str, nn.Module]

GROUPS = 2  # as in Adaptive Federated Optimization (Reddi et al., ICLR 2021)


def network(architecture: Plain | Residual, shape: tuple[int, int, int], classes: int, seed: int) -> Net:
    with seeded(seed):
        if isinstance(architecture, Plain):
            body, width = _plain(architecture, shape)
        else:
            body, width = _residual(architecture, shape[0])
        return Net(_sequence(body), nn.Linear(width, classes))


def _plain(architecture: Plain, shape: tuple[int, int, int]) -> tuple[Modules, int]:
    """The body, and the number of features it computes."""
    channels, height, width = shape
    kernel, padding, norm = architecture.kernel, architecture.padding, architecture.norm
    modules: Modules = {"layout": ChannelsLast()} if architecture.stages else {}
    number = 0
    for stage in architecture.stages:
        for outputs in stage:
            number += 1
            modules |= _conv(f"conv{number}", channels, outputs, norm, kernel=kernel, padding=padding)
            modules |= {f"conv{number}_relu": nn.ReLU()}
            channels = outputs
        # The same numbers as pooling after the activation, on a quarter of the pixels.
        relu = modules.pop(f"conv{number}_relu")
        modules |= {f"conv{number}_pool": nn.MaxPool2d(2), f"conv{number}_relu": relu}
    pixels = architecture.pooled(height) * architecture.pooled(width)
    fully_connected, features = _hidden(channels * pixels, architecture.hidden, norm)
    return modules | {"flatten": nn.Flatten()} | fully_connected, features


def _residual(architecture: Residual, channels: int) -> tuple[Modules, int]:
    """The body, and the number of features it computes."""
    norm, width = architecture.norm, architecture.channels[0]
    modules: Modules = {"layout": ChannelsLast()}
    modules |= _conv("conv", channels, width, norm) | {"conv_relu": nn.ReLU()}
    for group, (blocks, outputs) in enumerate(zip(architecture.blocks, architecture.channels, strict=True), 1):
        for block in range(1, blocks + 1):
            stride = 2 if group > 1 and block == 1 else 1
            modules |= {f"group{group}_block{block}": Block(width, outputs, stride, norm, architecture.shortcut)}
            width = outputs
    modules |= {"average": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    fully_connected, features = _hidden(width, architecture.hidden, norm="none")
    return modules | fully_connected, features


class ChannelsLast(nn.Module):
    """The same images in the memory layout in which convolutions and pooling are fastest."""

    def forward(self, x: Tensor) -> Tensor:
        return x if stands_for_many(x) else x.to(memory_format=torch.channels_last)


class Block(nn.Module):
    """relu(two convolutions of x + shortcut of x)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, shortcut: str) -> None:
        super().__init__()
        self.residual = _sequence(
            _conv("conv1", inputs, outputs, norm, stride=stride)
            | {"conv1_relu": nn.ReLU()}
            | _conv("conv2", outputs, outputs, norm)
        )
        self.shortcut: nn.Module
        if stride == 1 and inputs == outputs:
            self.shortcut = nn.Identity()
        elif shortcut == "projection":
            self.shortcut = _sequence(_conv("conv", inputs, outputs, norm, kernel=1, stride=stride, padding=0))
        else:
            self.shortcut = Subsample(stride, outputs - inputs)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.relu(self.residual(x) + self.shortcut(x)))


class Subsample(nn.Module):
    """Every `stride`-th pixel, and `extra` channels of zeros: a shortcut without parameters (He et al., CVPR 2016)."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride = stride
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


def _conv(
    name: str, inputs: int, outputs: int, norm: str, *, kernel: int = 3, stride: int = 1, padding: int = 1
) -> Modules:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=norm == "none")
    return {name: conv} | _norm(name, norm, outputs, nn.BatchNorm2d)


def _hidden(inputs: int, widths: tuple[int, ...], norm: str) -> tuple[Modules, int]:
    """Fully connected layers, and the width of the last."""
    modules: Modules = {}
    for number, width in enumerate(widths, 1):
        name = f"fc{number}"
        modules |= {name: nn.Linear(inputs, width, bias=norm == "none")}
        modules |= _norm(name, norm, width, nn.BatchNorm1d) | {f"{name}_relu": nn.ReLU()}
        inputs = width
    return modules, inputs


def _norm(name: str, norm: str, channels: int, batch: type[nn.BatchNorm1d] | type[nn.BatchNorm2d]) -> Modules:
    if norm == "none":
        return {}
    layer = batch(channels) if norm == "batch" else nn.GroupNorm(math.gcd(GROUPS, channels), channels)
    return {f"{name}_norm": layer}


def _sequence(modules: Modules) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))
