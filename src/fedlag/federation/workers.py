"""Workers that use one core each: how many, and in which order they take clients."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from fedlag.federation.work import Source


def pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "fedlag", initializer=torch.set_num_threads, initargs=(1,))


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LongestFirst:
    """Clients in the order of how much they have to train on, so that none that takes long comes last."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._sizes: dict[int, int] = {}

    def __call__(self, clients: Iterable[int]) -> list[int]:
        return sorted(clients, key=self.size, reverse=True)

    def size(self, client: int) -> int:
        if client not in self._sizes:
            self._sizes[client] = len(self.source(client, "train").y)
        return self._sizes[client]
