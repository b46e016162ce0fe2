"""FLASH's step on the server."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlag import check, tree
from fedlag.optim.adaptive import Adaptive, averaged
from fedlag.optim.optimizer import moved
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Flash(Adaptive):
    """Adam's step, larger where squared updates have lately been larger than their average: where data drift.

    u = b2 v + (1 - b2) g^2;  b3 = v / (|g^2 - u| + v);  d <- b3 d + (1 - b3) (g^2 - u);  v <- u;
    w <- w - lr m / max(sqrt(v) - d + eps, eps). d starts at 0, m and v are those of `Adaptive`.
    """

    lr: float = 0.1
    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check.share("beta2", self.beta2)

    def init(self, params: Params) -> Tree:
        return {**super().init(params), "drift": tree.zeros_like(params)}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        mean, square = self.mean(grads, state), self.square(grads, state)
        drift = tree.map(_drifted, grads, state["square"], square, state["drift"])
        direction = tree.map(lambda m, v, d: m / (v.sqrt() - d + self.eps).clamp(min=self.eps), mean, square, drift)
        return moved(params, direction, -self.lr), {"mean": mean, "square": square, "drift": drift}

    def square(self, grads: Params, state: Tree) -> Params:
        return averaged(grads, state, self.beta2)


def _drifted(grad: Tensor, before: Tensor, square: Tensor, drift: Tensor) -> Tensor:
    """The drift after a step in which the average of squares went from `before` to `square`."""
    news = grad * grad - square
    scale = (news.abs() + before).clamp(min=torch.finfo(before.dtype).tiny)  # both are 0 where nothing ever moves
    return torch.lerp(news, drift, before / scale)
