"""Which client is behind which of Flower's nodes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedlag.errors import InputError
from fedlag.flower import wire
from fedlag.flower.exchange import exchange
from fedlag.flower.wire import Hello

log = logging.getLogger("flwr")  # where Flower's programs say what they do

PATIENCE = 60.0  # seconds within which a node must say which client it is
ATTEMPTS = 3  # to make it say so


class Roster:
    """Nodes come and go under new numbers; clients keep theirs. A node says once which client it is.

    experiment: the hash of the one this server runs; nodes of another are sent nothing.
    """

    def __init__(self, grid: Grid, experiment: str) -> None:
        self.grid = grid
        self.experiment = experiment
        self.hellos: dict[int, Hello] = {}  # node -> what it said, if it can take part
        self.refused: dict[int, str] = {}  # node -> why it cannot
        self._asked: Counter[int] = Counter()  # node -> how often it was asked in vain

    def present(self, clients: Collection[int], least: int, seconds: float) -> dict[int, int]:
        """client -> node, of those of the clients that are there, once there are so many."""
        end = time.monotonic() + seconds
        while True:
            there = {client: node for client, node in self._refresh().items() if client in clients}
            if len(there) >= least:
                return there
            if time.monotonic() >= end:
                refused = "".join(f" Node {node} cannot take part: {why}." for node, why in self.refused.items())
                raise InputError(
                    f"After {seconds:g} s {len(there)} of the {least} clients that a round needs are there; start the "
                    f"SuperNodes of the others and run the app again: it goes on from its last checkpoint.{refused}"
                )
            time.sleep(0.2)

    def _refresh(self) -> dict[int, int]:
        """client -> node, of all that are there. Of several nodes that say the same, the one that came last."""
        there = set(self.grid.get_node_ids())
        self.hellos = {node: hello for node, hello in self.hellos.items() if node in there}
        self.refused = {node: why for node, why in self.refused.items() if node in there}
        strangers = [node for node in sorted(there - self.hellos.keys()) if self._asked[node] < ATTEMPTS]
        if strangers:
            self._asked.update(strangers)
            for reply in exchange(self.grid, "query", {node: RecordDict() for node in strangers}, PATIENCE):
                self._hear(reply)
        return {hello.client: node for node, hello in self.hellos.items()}

    def _hear(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        self._asked[node] = ATTEMPTS  # whatever it said, it will say again
        problem, hello = self._problem(reply)
        if hello is None:
            self.refused[node] = problem
            log.warning("Node %d cannot take part: %s", node, problem)
            return
        for other in [other for other, known in self.hellos.items() if known.client == hello.client]:
            log.warning("Client %d is now node %d, no longer node %d", hello.client, node, other)
            del self.hellos[other]
        self.hellos[node] = hello

    def _problem(self, reply: Message) -> tuple[str, Hello | None]:
        """What the node said, or why that cannot be used."""
        if reply.has_error():
            return reply.error.reason or f"Flower's error {reply.error.code}", None
        try:
            hello = wire.read_hello(reply.content)
        except InputError as error:
            return str(error), None
        if hello.experiment != self.experiment:
            return f"its experiment is {hello.experiment}, the server's {self.experiment}; install one fedlag", None
        return "", hello
