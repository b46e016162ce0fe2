"""Training as a PyTorch user would write it, on modules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from fedlag.flow import Batch
from fedlag.net import Net

Loss = Callable[[Net, Batch], Tensor]


def entropy(net: Net, batch: Batch) -> Tensor:
    return functional.cross_entropy(net(batch.x), batch.y)


def trained(net: Net, batches: Iterator[Batch], prefix: str = "", loss: Loss = entropy, lr: float = 0.1) -> Net:
    """A copy after plain steps on the parameters whose name starts with `prefix`; the others only evaluate.

    One example has no variance, so a batch of one is normalised as in evaluation.
    """
    net = copy.deepcopy(net)
    moving = [value for name, value in net.named_parameters() if name.startswith(prefix)]
    for batch in batches:
        net.eval()
        for name, part in (("body", net.body), ("head", net.head)):
            part.train(f"{name}.".startswith(prefix) and len(batch.y) > 1)
        grads = torch.autograd.grad(loss(net, batch), moving)
        with torch.no_grad():
            for value, grad in zip(moving, grads, strict=True):
                value.sub_(lr * grad)
    return net


def values(net: Net) -> dict[str, Tensor]:
    """Weights and statistics, without counters."""
    return {name: value for name, value in net.state_dict().items() if value.is_floating_point()}


def loaded(net: Net, *parts: Mapping[str, Tensor]) -> Net:
    """A copy with these weights."""
    net = copy.deepcopy(net)
    for part in parts:
        net.load_state_dict(dict(part), strict=False)
    return net
