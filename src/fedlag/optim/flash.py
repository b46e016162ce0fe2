"""FLASH's step on the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlag import check, tree
from fedlag.optim.optimizer import moved
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Flash:
    """Adam's step, larger where squared updates have lately been larger than their average: where data drift.

    m <- b1 m + (1 - b1) g;  u = b2 v + (1 - b2) g^2;  b3 = v / (|g^2 - u| + v);
    d <- b3 d + (1 - b3) (g^2 - u);  v <- u;  w <- w - lr m / max(sqrt(v) - d + eps, eps). v starts at eps^2, d at 0.
    """

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-3

    def __post_init__(self) -> None:
        check.positive("lr", self.lr)
        check.share("beta1", self.beta1)
        check.share("beta2", self.beta2)
        check.positive("eps", self.eps)

    def init(self, params: Params) -> Tree:
        square = tree.map(lambda p: torch.full_like(p, self.eps**2), params)
        return {"mean": tree.zeros_like(params), "square": square, "drift": tree.zeros_like(params)}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        mean = tree.map(lambda g, m: torch.lerp(g, m, self.beta1), grads, state["mean"])
        square = tree.map(lambda g, v: torch.lerp(g * g, v, self.beta2), grads, state["square"])
        drift = tree.map(_drifted, grads, state["square"], square, state["drift"])
        direction = tree.map(lambda m, v, d: m / (v.sqrt() - d + self.eps).clamp(min=self.eps), mean, square, drift)
        return moved(params, direction, -self.lr), {"mean": mean, "square": square, "drift": drift}

    def slowed(self, factor: float) -> Flash:
        return replace(self, lr=self.lr * factor)


def _drifted(grad: Tensor, before: Tensor, square: Tensor, drift: Tensor) -> Tensor:
    """The drift after a step in which the average of squares went from `before` to `square`."""
    news = grad * grad - square
    scale = (news.abs() + before).clamp(min=torch.finfo(before.dtype).tiny)  # both are 0 where nothing ever moves
    return torch.lerp(news, drift, before / scale)
