"""Adam, in the form used on clients and in the form used on servers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedlag import check, tree
from fedlag.optim.optimizer import moved
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Adam:
    """m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- w - lr m / (sqrt(v) + eps).

    With `bias_correction` (the usual form on clients) m and v are divided by 1 - b^t; without it (the form servers
    use) v starts at eps^2 instead of 0.
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    bias_correction: bool = True

    def __post_init__(self) -> None:
        check.positive("lr", self.lr)
        check.share("beta1", self.beta1)
        check.share("beta2", self.beta2)
        check.positive("eps", self.eps)

    def init(self, params: Params) -> Tree:
        first = 0.0 if self.bias_correction else self.eps**2
        return {
            "steps": 0,
            "mean": tree.zeros_like(params),
            "square": tree.map(lambda p: torch.full_like(p, first), params),
        }

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        steps = state["steps"] + 1
        mean = tree.map(lambda g, m: torch.lerp(g, m, self.beta1), grads, state["mean"])
        square = tree.map(lambda g, v: torch.lerp(g * g, v, self.beta2), grads, state["square"])
        rate, root = self.lr, 1.0
        if self.bias_correction:
            rate, root = self.lr / (1 - self.beta1**steps), (1 - self.beta2**steps) ** 0.5
        direction = tree.map(lambda m, v: m / (v.sqrt() / root + self.eps), mean, square)
        return moved(params, direction, -rate), {"steps": steps, "mean": mean, "square": square}

    def slowed(self, factor: float) -> Adam:
        return replace(self, lr=self.lr * factor)
