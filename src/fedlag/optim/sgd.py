"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

from fedlag import check, tree
from fedlag.optim.optimizer import move, moved
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class SGD:
    """g <- g + weight_decay w;  m <- momentum m + g;  w <- w - lr m."""

    lr: float = 0.005
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check.positive("lr", self.lr)
        check.share("momentum", self.momentum)
        check.not_negative("weight_decay", self.weight_decay)

    def init(self, params: Params) -> Tree:
        return {"momentum": tree.zeros_like(params)} if self.momentum else {}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        if self.weight_decay:
            grads = tree.add(grads, params, alpha=self.weight_decay)
        if self.momentum:
            grads = tree.add(grads, state["momentum"], alpha=self.momentum)
            state = {"momentum": grads}
        return self._moved(params, grads), state

    def slowed(self, factor: float) -> Self:
        return replace(self, lr=self.lr * factor)

    def _moved(self, params: Params, direction: Params) -> Params:
        return moved(params, direction, -self.lr)


@dataclass(frozen=True, kw_only=True)
class InPlace(SGD):
    """The same numbers in the same memory: `step` overwrites the parameters it moves, for whoever owns them."""

    @classmethod
    def like(cls, optimizer: SGD) -> InPlace:
        return cls(**{field.name: getattr(optimizer, field.name) for field in fields(SGD)})

    def _moved(self, params: Params, direction: Params) -> Params:
        return move(params, direction, -self.lr)
