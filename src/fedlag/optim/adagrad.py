"""Adagrad, in the form used on servers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedlag import check, tree
from fedlag.optim.optimizer import moved
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Adagrad:
    """m <- b1 m + (1 - b1) g;  v <- v + g^2;  w <- w - lr m / (sqrt(v) + eps). v starts at eps^2."""

    lr: float = 0.1
    beta1: float = 0.0
    eps: float = 1e-3

    def __post_init__(self) -> None:
        check.positive("lr", self.lr)
        check.share("beta1", self.beta1)
        check.positive("eps", self.eps)

    def init(self, params: Params) -> Tree:
        square = tree.map(lambda p: torch.full_like(p, self.eps**2), params)
        return {"mean": tree.zeros_like(params), "square": square}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        mean = tree.map(lambda g, m: torch.lerp(g, m, self.beta1), grads, state["mean"])
        square = tree.map(lambda g, v: v + g * g, grads, state["square"])
        direction = tree.map(lambda m, v: m / (v.sqrt() + self.eps), mean, square)
        return moved(params, direction, -self.lr), {"mean": mean, "square": square}

    def slowed(self, factor: float) -> Adagrad:
        return replace(self, lr=self.lr * factor)
