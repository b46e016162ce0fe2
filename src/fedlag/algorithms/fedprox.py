"""FedProx: clients stay near where they start."""

from __future__ import annotations

from dataclasses import dataclass

from fedlag import check, tree
from fedlag.algorithm import Algorithm
from fedlag.flow import Local
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """Federated Optimization in Heterogeneous Networks (Li et al., MLSys 2020).

    Clients minimise their loss + mu/2 ||w - start||^2.
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        check.not_negative("mu", self.mu)

    def correct(self, local: Local, params: Params, grads: Params) -> Params:
        return tree.map(lambda g, w, start: g + self.mu * (w - start), grads, params, local.start)
