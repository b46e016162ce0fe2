"""The coordinate-wise median."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlag import tree
from fedlag.aggregate.aggregator import Aggregator
from fedlag.aggregate.blocks import ascending, by_coordinate
from fedlag.flow import Replies
from fedlag.tree import Params

ROUNDING = 1e-9  # of a sum of weights


@dataclass(frozen=True, kw_only=True)
class Median(Aggregator):
    """Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (Yin et al., ICML 2018).

    In every coordinate the value with as much weight below as above, the mean of two where both are. Fewer than half
    of the clients, whatever they send, cannot move it beyond what the others sent. Weights count equally unless told
    otherwise, because a client's number of examples is its own claim.
    """

    weighting: str = "uniform"

    def __call__(self, replies: Replies) -> Params:
        weights = self.weights(replies)
        return tree.map(lambda value: by_coordinate(lambda block: median(block, weights), value), replies.update)


def median(values: Tensor, weights: Tensor) -> Tensor:
    """Weighted median over the first dimension: (clients, n) and (clients,) to (n,)."""
    if (weights == weights[0]).all():
        ordered = ascending(values)
        return torch.lerp(ordered[(len(values) - 1) // 2], ordered[len(values) // 2], 0.5)
    ordered, order = values.sort(dim=0)
    below = weights[order].cumsum(dim=0)
    lower = (below < 0.5 - ROUNDING).sum(dim=0, keepdim=True)
    upper = (below <= 0.5 + ROUNDING).sum(dim=0, keepdim=True)
    return torch.lerp(ordered.gather(0, lower), ordered.gather(0, upper), 0.5)[0]
