"""Who the clients are: two verbs, train and evaluate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from fedlag.flow import Client, Letter, Message, Scores


class Federation(Protocol):
    """Clients somewhere: in this process, on every core, on other machines."""

    def train(
        self, message: Message, letters: Mapping[int, Letter], scored: Sequence[str]
    ) -> Iterable[tuple[int, Any]]:
        """Let every client that has a letter train; gives (client, Reply or exception) as they come."""

    def evaluate(self, message: Message, letters: Mapping[int, Letter], stage: str) -> Iterator[tuple[int, Scores]]:
        """Score every client that has a letter, and keep nothing."""

    def clients(self) -> dict[int, Client]:
        """What every client met so far keeps, for saving."""

    def restore(self, clients: MutableMapping[int, Client]) -> None:
        """Take up what was saved, and go on keeping clients there."""
