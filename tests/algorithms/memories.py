"""What all clients remember, round after round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from typing import Any, NamedTuple

import torch
from laws.federations import SEED, SOME, Scheduled, start
from torch import Tensor

from fedlag.algorithm import Algorithm
from fedlag.flow import Client, Server
from fedlag.round import Task
from fedlag.run import rounds

COMES_AND_GOES = Scheduled(("", "", "body.0.* body.1.*", "body.5.*", "body.5.*", "", "head.*"))


class Moment(NamedTuple):
    """After a round."""

    task: Task
    server: Server
    clients: Mapping[int, Client]

    @property
    def personal(self) -> frozenset[str]:
        return self.task.algorithm.personal.personal(self.server.rule)

    @property
    def shared(self) -> list[str]:
        """Names that are trained and shared."""
        return [name for name in self.task.trained if name not in self.personal]

    def remembered(self, name: str) -> Tensor:
        """(clients, *shape); zeros where a client has nothing valid of that name."""
        return torch.stack([self._of(self.clients.get(client, Client()), name) for client in range(self.task.clients)])

    def _of(self, client: Client, name: str) -> Tensor:
        valid = client.round >= self.server.since.get(name, 0)
        memory: dict[str, Tensor] = client.memory if valid and client.memory else {}
        return memory.get(name, torch.zeros_like(self.server.params[name]))


def moments(algorithm: Algorithm, number: int = 9, sampling: Any = SOME, **setup: Any) -> Iterator[Moment]:
    task, server, federation = start(algorithm, **setup)
    for one in islice(rounds(task, server, federation, sampling, SEED), number):
        yield Moment(task, one.server, federation.clients())


def left(seen: list[Moment]) -> frozenset[str]:
    """Names that were personal for a while and are shared again at some later moment."""
    return frozenset(name for one, other in pairwise(seen) for name in one.personal - other.personal)
