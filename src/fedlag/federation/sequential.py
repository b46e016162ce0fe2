"""One client after another in this process: the reference every other federation must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from fedlag.federation.work import HELD_OUT, ClientWork, Source
from fedlag.flow import Client, Letter, Message, Reply, Scores
from fedlag.round import Task, client_evaluate, client_round

T = TypeVar("T")
One = Callable[[Task, int], T]  # what one client does


class Sequential:
    """Clients take turns. A client nobody has met yet costs nothing."""

    def __init__(self, task: Task, source: Source, seed: int) -> None:
        self.task = task
        self.source = source
        self.seed = seed
        self._clients: MutableMapping[int, Client] = {}

    def train(
        self, message: Message, letters: Mapping[int, Letter], scored: Sequence[str] = HELD_OUT
    ) -> Iterator[tuple[int, Reply | Exception]]:
        def one(task: Task, client: int) -> tuple[Client, Reply | Exception]:
            work = ClientWork(self.source, self.seed, message.round, client, tuple(scored))
            return client_round(task, message, letters[client], self._known(client), work)

        for client, (kept, reply) in self._each(one, letters):
            self._clients[client] = kept
            yield client, reply

    def evaluate(
        self, message: Message, letters: Mapping[int, Letter], stage: str = "personal"
    ) -> Iterator[tuple[int, Scores]]:
        def one(task: Task, client: int) -> Scores:
            work = ClientWork(self.source, self.seed, message.round, client)
            return client_evaluate(task, message, letters[client], self._known(client), work, stage)

        return self._each(one, letters)

    def clients(self) -> dict[int, Client]:
        return dict(self._clients)

    def restore(self, clients: MutableMapping[int, Client]) -> None:
        self._clients = clients

    def _known(self, client: int) -> Client:
        return self._clients.get(client, Client())

    def _each(self, one: One[T], clients: Iterable[int]) -> Iterator[tuple[int, T]]:
        """What every client does, as they come."""
        for client in clients:
            with one_thread():
                done = one(self.task, client)
            yield client, done


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread: the same bits on every machine load, and no barriers between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
