"""A federation whose replies can be looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from fedlag.federation import Federation
from fedlag.flow import Client, Letter, Message, Reply, Scores


class Observed:
    """Passes everything on, and remembers what clients replied in the latest round."""

    def __init__(self, inner: Federation) -> None:
        self.inner = inner
        self.replies: dict[int, Reply] = {}

    def train(
        self, message: Message, letters: Mapping[int, Letter], scored: Sequence[str] = ()
    ) -> Iterator[tuple[int, Any]]:
        self.replies = {}
        for client, reply in self.inner.train(message, letters, scored):
            if isinstance(reply, Reply):
                self.replies[client] = reply
            yield client, reply

    def evaluate(
        self, message: Message, letters: Mapping[int, Letter], stage: str = "personal"
    ) -> Iterator[tuple[int, Scores]]:
        return self.inner.evaluate(message, letters, stage)

    def clients(self) -> dict[int, Client]:
        return self.inner.clients()

    def restore(self, clients: MutableMapping[int, Client]) -> None:
        self.inner.restore(clients)
