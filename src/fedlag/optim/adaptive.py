"""What optimisers share that divide by the root of averaged squares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch

from fedlag import check, tree
from fedlag.optim.optimizer import moved
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """m <- b1 m + (1 - b1) g;  v follows g^2 in a way of its own;  w <- w - lr m / (sqrt(v) + eps). v starts at eps^2.

    The form used on servers: nothing is corrected for its start.
    """

    lr: float = 0.01
    beta1: float = 0.9
    eps: float = 1e-3

    def __post_init__(self) -> None:
        check.positive("lr", self.lr)
        check.share("beta1", self.beta1)
        check.positive("eps", self.eps)

    def init(self, params: Params) -> Tree:
        square = tree.map(lambda p: torch.full_like(p, self.eps**2), params)
        return {"mean": tree.zeros_like(params), "square": square}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        mean, square = self.mean(grads, state), self.square(grads, state)
        direction = tree.map(lambda m, v: m / (v.sqrt() + self.eps), mean, square)
        return moved(params, direction, -self.lr), {"mean": mean, "square": square}

    def mean(self, grads: Params, state: Tree) -> Params:
        return tree.map(lambda g, m: torch.lerp(g, m, self.beta1), grads, state["mean"])

    def square(self, grads: Params, state: Tree) -> Params:
        raise NotImplementedError

    def slowed(self, factor: float) -> Self:
        return replace(self, lr=self.lr * factor)


def averaged(grads: Params, state: Tree, beta: float) -> Params:
    """v <- beta v + (1 - beta) g^2."""
    return tree.map(lambda g, v: torch.lerp(g * g, v, beta), grads, state["square"])
