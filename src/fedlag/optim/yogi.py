"""Yogi, in the form used on servers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlag import check, tree
from fedlag.optim.adaptive import Adaptive
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Yogi(Adaptive):
    """v <- v - (1 - b2) g^2 sign(v - g^2), and the step of `Adaptive`: v moves by no more than a share of g^2."""

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check.share("beta2", self.beta2)

    def square(self, grads: Params, state: Tree) -> Params:
        pull = 1 - self.beta2
        return tree.map(lambda g, v: v - pull * g * g * torch.sign(v - g * g), grads, state["square"])
