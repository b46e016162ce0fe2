"""What an optimiser is."""

from __future__ import annotations

from typing import Protocol, Self

import torch

from fedlag import tree
from fedlag.tree import Params, Tree


class Optimizer(Protocol):
    @property
    def lr(self) -> float: ...

    def init(self, params: Params) -> Tree:
        """The state before the first step; tensors in it are keyed by parameter name."""

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        """Move the parameters named in `grads`; all others stay."""

    def slowed(self, factor: float) -> Self:
        """The same optimiser with its learning rate multiplied."""


def moved(params: Params, direction: Params, alpha: float) -> Params:
    """All of `params`, those named in `direction` by alpha * direction, in one call for all tensors."""
    if not direction:
        return dict(params)
    if any(map(tree.stands_for_many, direction.values())):  # which has no calls for many tensors
        return {**params, **tree.add({name: params[name] for name in direction}, direction, alpha=alpha)}
    values = torch._foreach_add([params[name] for name in direction], list(direction.values()), alpha=alpha)
    return {**params, **dict(zip(direction, values, strict=True))}


def move(params: Params, direction: Params, alpha: float) -> Params:
    """The same in the memory of `params`, which must be yours alone."""
    if direction:
        torch._foreach_add_([params[name] for name in direction], list(direction.values()), alpha=alpha)
    return params
