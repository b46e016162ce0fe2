"""Clients on every core, for steps so short that threads would wait for each other's Python: the bits of one by one."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TypeVar

from fedlag.errors import InputError
from fedlag.federation.forks import forked
from fedlag.federation.sequential import One, Sequential, one_thread
from fedlag.federation.work import Source
from fedlag.federation.workers import LongestFirst, cores
from fedlag.flow import Client
from fedlag.round import Task

T = TypeVar("T")

FORKS = sys.platform == "linux" and hasattr(os, "fork")  # elsewhere a fork may not use what its system's libraries hold
WORTH_IT = 0.05  # seconds of all clients' work; forking takes about a tenth of it


class Processes(Sequential):
    """For every cohort a process forked on each core, with a generator of its own, so that dropout needs no turns.

    A fork knows the letters and what clients keep because this process did; only what a client did comes back. Where
    all the work was shorter than forking is worth, as it may be for scores, clients take turns here.
    """

    def __init__(self, task: Task, source: Source, seed: int, workers: int | None = None) -> None:
        if not FORKS:
            raise InputError(
                f"federation = 'processes' needs Linux, this is {sys.platform}; 'auto' chooses what is here."
            )
        if task.model.device.type != "cpu":
            raise InputError("federation = 'processes' copies this process, which GPUs don't allow; use 'sequential'.")
        super().__init__(task, source, seed)
        self.workers = workers or cores()
        self._longest_first = LongestFirst(source)
        self._at_hand: dict[int, Client] = {}
        self._seconds: dict[str, float] = {}  # that a client took for a kind of work, at last

    def _each(self, one: One[T], clients: Iterable[int]) -> Iterator[tuple[int, T]]:
        order, kind, taken = self._longest_first(clients), one.__qualname__, list[float]()

        def timed(client: int) -> tuple[T, float]:
            began = time.perf_counter()
            with one_thread():
                done = one(self.task, client)
            return done, time.perf_counter() - began

        forks = self.workers > 1 and self._seconds.get(kind, WORTH_IT) * len(order) >= WORTH_IT
        if forks:  # who must not read a database that was open before them
            self._at_hand = {client: self._known(client) for client in order}
        results = forked(timed, order, self.workers) if forks else ((client, timed(client)) for client in order)
        try:
            with closing(results):
                for client, (done, seconds) in results:
                    taken.append(seconds)
                    yield client, done
        finally:
            self._at_hand = {}
        self._seconds[kind] = statistics.fmean(taken or [0.0])

    def _known(self, client: int) -> Client:
        return self._at_hand.get(client) or super()._known(client)
