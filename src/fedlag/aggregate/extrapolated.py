"""FedEXP's step along the mean."""

from __future__ import annotations

from dataclasses import dataclass

from fedlag import check, tree
from fedlag.aggregate.aggregator import Aggregator
from fedlag.aggregate.blocks import columns
from fedlag.flow import Replies
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class Extrapolated(Aggregator):
    """FedExP: Speeding Up Federated Averaging via Extrapolation (Jhunjhunwala et al., ICLR 2023).

    The mean update, lengthened by max(1, Σ p_u |Δ_u|² / (2 (|mean|² + epsilon))): the more clients disagree, the
    further. The authors' code weighs by samples and multiplies epsilon by the number of clients.
    """

    weighting: str = "uniform"
    epsilon: float = 1e-3
    decay: float = 1.0  # epsilon is multiplied by this after every round; the square of the learning rate's

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative("epsilon", self.epsilon)
        check.positive("decay", self.decay)

    def __call__(self, replies: Replies) -> Params:
        return tree.scale(tree.mean(replies.update, self.weights(replies)), self.factor(replies))

    def factor(self, replies: Replies) -> float:
        """How many times its length the mean is taken; at least once."""
        weights = self.weights(replies)
        mean_of_squares, square_of_mean = 0.0, 0.0
        for block in columns(replies.update):
            weights = weights.to(block)
            mean_of_squares += float(weights @ block.square().sum(1))
            square_of_mean += float((weights @ block).square().sum())
        reach = 2 * (square_of_mean + self.epsilon * self.decay**replies.round)
        return max(1.0, mean_of_squares / reach) if reach else 1.0
