"""FedNova: clients that do more work have no more say."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlag import check, tree
from fedlag.aggregate import Aggregator, Nova
from fedlag.algorithm import Algorithm, Finish
from fedlag.flow import Local
from fedlag.optim import Optimizer
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class FedNova(Algorithm):
    """Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization (Wang et al., NeurIPS 2020).

    Updates are averaged per unit of local work. Work is the sum of the weights that a client's gradients have in its
    update: its steps for plain SGD, more with momentum, less with a proximal term.
    """

    aggregator: Aggregator = Nova()
    mu: float = 0.0  # pulls clients towards what they received

    def __post_init__(self) -> None:
        check.not_negative("mu", self.mu)

    def correct(self, local: Local, params: Params, grads: Params) -> Params:
        if not self.mu:
            return grads
        return tree.map(lambda g, w, start: g + self.mu * (w - start), grads, params, local.start)

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        return Finish(local.client.memory, {"work": torch.tensor(work(local.optimizer, steps, self.mu)).double()})


def work(optimizer: Optimizer, steps: int, mu: float = 0.0) -> float:
    """‖a‖₁: how far gradients of one would have gone, in learning rates."""
    place = {"": torch.zeros((), dtype=torch.float64)}
    state = optimizer.init(place)
    for _ in range(steps):
        place, state = optimizer.step(place, {"": 1.0 + mu * place[""]}, state)
    return -float(place[""]) / optimizer.lr
