"""How many updates become one, and the plainest answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlag import check, tree
from fedlag.flow import Replies
from fedlag.tree import Params

WEIGHTINGS = ("samples", "uniform")


@dataclass(frozen=True, kw_only=True)
class Aggregator:
    """One way to combine the updates of a round; `weighting` counts clients by their examples or equally."""

    weighting: str = "samples"

    def __post_init__(self) -> None:
        check.one_of("weighting", self.weighting, WEIGHTINGS)

    def weights(self, replies: Replies) -> Tensor:
        """(clients,) float64, not negative, with sum one."""
        counts = replies.examples.double() if self.weighting == "samples" else torch.ones(len(replies.ids)).double()
        return counts / counts.sum()

    def __call__(self, replies: Replies) -> Params:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Mean(Aggregator):
    """The weighted mean."""

    def __call__(self, replies: Replies) -> Params:
        return tree.mean(replies.update, self.weights(replies))
