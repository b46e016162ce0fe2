"""Who sees which examples when: (seed, round, client) to the rows of every step. The only place that shuffles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlag.algorithm import Steps
from fedlag.flow import Batch

HELD_OUT = ("validation", "test")

Source = Callable[[int, str], Batch]  # (client, part) -> examples


@dataclass(frozen=True)
class ClientWork:
    """One client's work in one round. Every purpose has a stream of its own, so none disturbs another."""

    source: Source
    run_seed: int
    round: int
    client: int
    scored: tuple[str, ...] = HELD_OUT

    def examples(self, part: str) -> Batch:
        return self.source(self.client, part)

    def stream(self, purpose: str) -> Shuffled:
        return Shuffled(self.examples("train"), self._generator(purpose))

    def draw(self, purpose: str, number: int, batch: int) -> Batch:
        examples = self.examples("train")
        rows = torch.from_numpy(self._generator(f"{purpose} {number}").integers(len(examples.y), size=batch))
        return Batch(examples.x[rows], examples.y[rows])

    def seed(self, purpose: str) -> int:
        return int(self._generator(f"{purpose} seed").integers(2**63))

    def _generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.run_seed, self.round, self.client, *purpose.encode()])


@dataclass(frozen=True)
class Shuffled:
    """Batches in a new order every epoch; the last one of an epoch may be smaller. Later calls go on drawing."""

    examples: Batch
    generator: np.random.Generator

    def batches(self, batch: int, epochs: int) -> Iterator[Batch]:
        for order in self.epochs(batch, epochs):
            x, y = self.examples.x[order], self.examples.y[order]
            yield from map(Batch, torch.split(x, batch), torch.split(y, batch))

    def epochs(self, batch: int, epochs: int) -> Iterator[Tensor]:
        """The rows of every epoch in their order; of the last one only those of the batches that are asked for."""
        count = len(self.examples.y)
        each = max(1, -(-count // batch))
        steps = int(epochs) if isinstance(epochs, Steps) else epochs * each
        for left in range(steps, 0, -each):
            yield torch.from_numpy(self.generator.permutation(count))[: left * batch]
