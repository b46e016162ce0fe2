"""The mean weighted by what clients say of themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlag import tree
from fedlag.aggregate.aggregator import Aggregator
from fedlag.errors import InputError
from fedlag.flow import Replies
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class Reported(Aggregator):
    """The mean weighted by a number from 0 upwards that every client reports; by `weighting` where all report 0."""

    key: str = "weight"  # of that number in what clients tell besides their updates

    def weights(self, replies: Replies) -> Tensor:
        if self.key not in replies.extra:
            raise InputError(
                f"This aggregator weighs clients by {self.key!r}, which the clients of this method do not report; "
                "choose another one, such as 'mean'."
            )
        reported: Tensor = replies.extra[self.key].double()
        total = reported.sum()
        return reported / total if 0 < total < torch.inf else super().weights(replies)

    def __call__(self, replies: Replies) -> Params:
        return tree.mean(replies.update, self.weights(replies))
