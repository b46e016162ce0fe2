"""The mean of those with close neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlag import check
from fedlag.aggregate.aggregator import Aggregator
from fedlag.aggregate.blocks import headcount, recombine
from fedlag.flow import Replies
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Aggregator):
    """Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent (Blanchard et al., NeurIPS 2017).

    Of M clients of which f may be anything, the mean of the M - f whose M - f - 2 nearest others are nearest. Weights
    count equally unless told otherwise, because a client's number of examples is its own claim.
    """

    weighting: str = "uniform"
    byzantine: float = 0.1  # f / M; the guarantee needs M > 2 f + 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check.minority("byzantine", self.byzantine)

    def __call__(self, replies: Replies) -> Params:
        weights = self.weights(replies)
        suspects = headcount(self.byzantine, len(weights))

        def coefficients(gram: Tensor) -> Tensor:
            far = remoteness(gram, suspects).tolist()
            order = sorted(range(len(far)), key=lambda client: (far[client], replies.ids[client]))
            chosen = torch.zeros_like(weights)
            chosen[order[: len(order) - suspects]] = 1.0
            return weights * chosen / (weights @ chosen)

        return recombine(replies.update, "model", coefficients)


def remoteness(gram: Tensor, suspects: int) -> Tensor:
    """Krum's score: the sum of squared distances to the nearest others, (clients,)."""
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp(min=0.0).fill_diagonal_(torch.inf)
    neighbours = min(max(len(gram) - suspects - 2, 1), len(gram) - 1)
    return distances.sort(dim=1).values[:, :neighbours].sum(dim=1)
