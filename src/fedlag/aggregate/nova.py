"""FedNova's normalised mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlag import tree
from fedlag.aggregate.aggregator import Aggregator
from fedlag.flow import Replies
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class Nova(Aggregator):
    """The mean of updates per unit of work, times the mean work: who does more has no more say.

    Work is what clients report as `work`, else their steps. Who did none is left out.
    """

    def __call__(self, replies: Replies) -> Params:
        work = replies.extra.get("work", replies.steps).double()
        weights = self.weights(replies) * (work > 0)
        weights = weights / weights.sum().clamp(min=torch.finfo(torch.float64).tiny)
        mean_work = weights @ work
        return tree.mean(replies.update, torch.where(work > 0, weights * mean_work / work, 0.0))
