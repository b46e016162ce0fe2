"""Clients on every core of this machine: the bits of one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from queue import SimpleQueue
from typing import TypeVar

import torch

from fedlag.federation.sequential import One, Sequential
from fedlag.federation.work import Source
from fedlag.federation.workers import LongestFirst, cores, pool
from fedlag.randomness import draws, states
from fedlag.round import Task

T = TypeVar("T")


class Threaded(Sequential):
    """A worker on every core, each with one intra-op thread and a network of its own; clients are taken longest first.

    A free worker takes the next client, so ragged clients leave no core idle. Networks that draw random numbers while
    they train, as dropout does, take turns: PyTorch has one generator.
    """

    def __init__(self, task: Task, source: Source, seed: int, workers: int | None = None) -> None:
        super().__init__(task, source, seed)
        self.workers = workers or cores()
        self._pool = pool(self.workers)
        self._idle = SimpleQueue[Task]()
        self._longest_first = LongestFirst(source)
        self._draws: bool | None = None

    def _each(self, one: One[T], clients: Iterable[int]) -> Iterator[tuple[int, T]]:
        order = self._longest_first(clients)
        if self._draws is None and order:
            self._hire(order[0])
        before = states()
        running = {self._pool.submit(self._with_idle, one, client): client for client in order}
        try:
            for future in as_completed(running):
                yield running.pop(future), future.result()
        finally:
            for future in running:
                future.cancel()
        if not (self._draws or all(map(torch.equal, before, states()))):
            raise RuntimeError(
                f"{type(self.task.algorithm).__name__} draws from PyTorch's own generator, one for all threads; use "
                "federation = 'processes' or 'sequential', or a generator of its own, seeded by local.work.seed(…)."
            )

    def _with_idle(self, one: One[T], client: int) -> T:
        task = self._idle.get()
        try:
            return one(task, client)
        finally:
            self._idle.put(task)

    def _hire(self, client: int) -> None:
        """A task for every worker."""
        self._draws = draws(self.task.model, self.source(client, "train").x[:2])
        for _ in range(self.workers):
            self._idle.put(dataclasses.replace(self.task, model=self.task.model.another(), draws=self._draws))
