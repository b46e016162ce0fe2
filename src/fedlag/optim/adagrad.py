"""Adagrad, in the form used on servers."""

from __future__ import annotations

from dataclasses import dataclass

from fedlag import tree
from fedlag.optim.adaptive import Adaptive
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Adagrad(Adaptive):
    """v <- v + g^2, and the step of `Adaptive`."""

    lr: float = 0.1
    beta1: float = 0.0

    def square(self, grads: Params, state: Tree) -> Params:
        return tree.map(lambda g, v: v + g * g, grads, state["square"])
