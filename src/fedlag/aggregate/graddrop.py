"""One sign for every coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlag import check
from fedlag.aggregate.aggregator import Aggregator
from fedlag.aggregate.blocks import by_coordinate
from fedlag.flow import Replies
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class GradDrop(Aggregator):
    """Just Pick a Sign: Optimizing Deep Multitask Models with Gradient Sign Dropout (Chen et al., NeurIPS 2020).

    Every coordinate draws a sign, positive with the share that positive updates have in all movement, and only
    updates of that sign enter the mean. On average that is the mean. (The paper acts on gradients of activations; this
    is its form for parameters, with clients' updates in the place of tasks' gradients.)
    """

    weighting: str = "uniform"
    seed: int = 0  # of the signs

    def __post_init__(self) -> None:
        super().__post_init__()
        check.count("seed", self.seed)

    def __call__(self, replies: Replies) -> Params:
        weights = self.weights(replies)
        return {name: self._one_sign(name, replies.round, value, weights) for name, value in replies.update.items()}

    def _one_sign(self, name: str, round: int, value: Tensor, weights: Tensor) -> Tensor:
        generator = np.random.default_rng([self.seed, round, *name.encode()])

        def drop(block: Tensor) -> Tensor:
            level = torch.from_numpy(generator.random(block.shape[1], dtype=np.float32)).to(block)
            return one_sign(block, weights, level)

        return by_coordinate(drop, value)


def one_sign(values: Tensor, weights: Tensor, level: Tensor) -> Tensor:
    """Weighted mean of (clients, n) in which only the positive or only the negative values count, (n,).

    level: (n,), from 0 to below 1; where the positive share is above it, the positive values count.
    """
    weights = weights.to(values)
    up, down = weights @ values.clamp(min=0.0), weights @ values.clamp(max=0.0)
    return torch.where(level * (up - down) < up, up, down)
