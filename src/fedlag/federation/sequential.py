"""One client after another in this process: the reference every other federation must equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from fedlag.federation.work import HELD_OUT, ClientWork, Source
from fedlag.flow import Client, Letter, Message, Reply, Scores
from fedlag.round import Task, client_evaluate, client_round


class Sequential:
    """Clients take turns. A client nobody has met yet costs nothing."""

    def __init__(self, task: Task, source: Source, seed: int) -> None:
        self.task = task
        self.source = source
        self.seed = seed
        self._clients: dict[int, Client] = {}

    def train(
        self, message: Message, letters: Mapping[int, Letter], scored: Sequence[str] = HELD_OUT
    ) -> Iterator[tuple[int, Reply | Exception]]:
        for client, letter in letters.items():
            work = ClientWork(self.source, self.seed, message.round, client, tuple(scored))
            known = self._clients.get(client, Client())
            with one_thread():
                self._clients[client], reply = client_round(self.task, message, letter, known, work)
            yield client, reply

    def evaluate(
        self, message: Message, letters: Mapping[int, Letter], stage: str = "personal"
    ) -> Iterator[tuple[int, Scores]]:
        for client, letter in letters.items():
            work = ClientWork(self.source, self.seed, message.round, client)
            known = self._clients.get(client, Client())
            with one_thread():
                scores = client_evaluate(self.task, message, letter, known, work, stage)
            yield client, scores

    def clients(self) -> dict[int, Client]:
        return dict(self._clients)

    def restore(self, clients: Mapping[int, Client]) -> None:
        self._clients = dict(clients)


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread: the same bits on every machine load, and no barriers between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
