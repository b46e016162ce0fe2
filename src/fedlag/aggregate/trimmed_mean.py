"""The coordinate-wise trimmed mean."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlag import check, tree
from fedlag.aggregate.aggregator import Aggregator
from fedlag.aggregate.blocks import ascending, by_coordinate, headcount
from fedlag.flow import Replies
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Aggregator):
    """Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (Yin et al., ICML 2018).

    In every coordinate the mean of what remains without the largest and the smallest values, this share of the
    clients at either end. Weights count equally unless told otherwise, because a client's number of examples is its
    own claim.
    """

    weighting: str = "uniform"
    trimmed: float = 0.1  # β; at either end

    def __post_init__(self) -> None:
        super().__post_init__()
        check.minority("trimmed", self.trimmed)

    def __call__(self, replies: Replies) -> Params:
        weights = self.weights(replies)
        cut = headcount(self.trimmed, len(weights))
        return tree.map(
            lambda value: by_coordinate(lambda block: trimmed_mean(block, weights, cut), value), replies.update
        )


def trimmed_mean(values: Tensor, weights: Tensor, cut: int) -> Tensor:
    """Weighted mean over the first dimension without the `cut` smallest and largest: (clients, n) to (n,)."""
    kept = slice(cut, len(values) - cut)
    if (weights == weights[0]).all():
        return ascending(values)[kept].mean(dim=0)
    ordered, order = values.sort(dim=0)
    share = weights.to(values.dtype)[order[kept]]
    return (share * ordered[kept]).sum(dim=0) / share.sum(dim=0)
