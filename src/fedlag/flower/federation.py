"""Clients on Flower's nodes: a federation like any other."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedlag import tree
from fedlag.errors import InputError, Lost
from fedlag.federation.work import HELD_OUT
from fedlag.flow import Client, Letter, Message, Reply, Scores
from fedlag.flower import wire
from fedlag.flower.exchange import exchange
from fedlag.flower.roster import Roster
from fedlag.flower.wire import Answer, Call

log = logging.getLogger("flwr")  # where Flower's programs say what they do

LARGEST = 1e6  # no entry of a sound update is further from zero


class Flower:
    """Clients on the nodes of a Flower grid, each known by its partition-id.

    run: the name under which clients keep what they keep. seconds: how long a client is waited for, and how long all
    is when fewer than `least` of a round's clients are there.
    """

    def __init__(self, grid: Grid, roster: Roster, run: str, seconds: float, least: int = 1) -> None:
        self.grid = grid
        self.roster = roster
        self.run = run
        self.seconds = seconds
        self.least = least
        self.traffic: Counter[str] = Counter()  # "down" and "up" in the latest training round

    def train(
        self, message: Message, letters: Mapping[int, Letter], scored: Sequence[str] = HELD_OUT
    ) -> Iterator[tuple[int, Reply | Exception]]:
        calls = {
            client: Call(self.run, client, message, letter, tuple(scored), seconds=self.seconds)
            for client, letter in letters.items()
        }
        self.traffic = Counter()
        for client, answer in self._answers("train", message.round, calls):
            if isinstance(answer, Exception):
                yield client, answer
            elif answer.reply is None:
                yield client, InputError("it answered a call to train with scores")
            else:
                yield client, _too_large(answer.reply) or answer.reply

    def evaluate(
        self, message: Message, letters: Mapping[int, Letter], stage: str = "personal"
    ) -> Iterator[tuple[int, Scores]]:
        calls = {
            client: Call(self.run, client, message, letter, HELD_OUT, stage, self.seconds)
            for client, letter in letters.items()
        }
        for client, answer in sorted(self._answers("evaluate", message.round, calls), key=itemgetter(0)):
            if isinstance(answer, Exception):
                log.warning("Client %d has no score: %s", client, answer)
            elif answer.scores is not None:
                yield client, answer.scores

    def clients(self) -> dict[int, Client]:
        """Nothing: what clients keep is with them."""
        return {}

    def restore(self, clients: Mapping[int, Client]) -> None:
        """Nothing to do: a letter says from where its client goes on."""

    def _answers(self, kind: str, round: int, calls: Mapping[int, Call]) -> Iterator[tuple[int, Answer | Exception]]:
        """One for every client, as they come."""
        nodes = self.roster.present(calls, min(self.least, len(calls)), self.seconds)
        waiting = {nodes[client]: client for client in calls if client in nodes}
        for client in calls.keys() - nodes.keys():
            yield client, LookupError("no SuperNode is there for it")
        contents = {nodes[client]: wire.write(calls[client]) for client in waiting.values()}
        self.traffic["down"] += sum(map(wire.payload, contents.values()))
        for reply in exchange(self.grid, kind, contents, self.seconds, str(round + 1)):
            client = waiting.pop(reply.metadata.src_node_id, -1)
            if client >= 0:
                yield client, self._read(reply, client, round)
        for client in waiting.values():
            yield client, TimeoutError(f"it did not answer within {self.seconds:g} s")

    def _read(self, reply: FlowerMessage, client: int, round: int) -> Answer | Exception:
        if reply.has_error():
            return RuntimeError(reply.error.reason or f"Flower's error {reply.error.code}")
        try:
            answer = wire.read_answer(reply.content)
        except InputError as error:
            return error
        self.traffic["up"] += wire.payload(reply.content)
        if (answer.client, answer.round) != (client, round):
            return InputError(
                f"its answer is of client {answer.client} in round {answer.round + 1}, not of client {client} in round "
                f"{round + 1}"
            )
        if answer.problem:
            return Lost(answer.problem) if answer.lost else RuntimeError(answer.problem)
        return answer


def _too_large(reply: Reply) -> InputError | None:
    """Finite, and yet enough to ruin the model."""
    for name, value in (*reply.update.items(), *reply.trained.items()):
        if tree.finite(value) and value.numel() and (reach := float(value.abs().max())) > LARGEST:
            return InputError(f"{name} in its reply reaches {reach:.3g}; no entry may be beyond {LARGEST:g}")
    return None
