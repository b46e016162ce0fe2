"""The loop: a generator of rounds, the same for every algorithm and every federation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedlag import check
from fedlag.federation import Federation
from fedlag.flow import Letter, Message, Scores, Server
from fedlag.replies import gather
from fedlag.round import STAGES, TRAINED, Step, Task, address, broadcast, server_round

NEWCOMER = -1  # a client nobody has met: it is sent the server's copy of everything


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Who takes part in a round: this share of all clients, drawn anew each time."""

    fraction: float = 1.0

    def __post_init__(self) -> None:
        check.portion("sampling.fraction", self.fraction)

    def cohort(self, clients: int, seed: int, round: int) -> tuple[int, ...]:
        size = max(1, round_half_up(self.fraction * clients))
        generator = np.random.default_rng([seed, round, *b"cohort"])
        return tuple(sorted(generator.choice(clients, size, replace=False).tolist()))


class Round(NamedTuple):
    """One finished round, for looking at."""

    number: int
    server: Server  # after the round
    message: Message
    letters: dict[int, Letter]
    dropped: dict[int, str]  # participant -> why its reply was not used
    trained: dict[int, Scores]  # participants' models right after training
    step: Step | None  # None when no reply could be used: the server stands as it was
    sent: dict[int, Counter[str]]  # whose reply was used -> bytes by parameter name; "extra" is what is added


def rounds(
    task: Task,
    server: Server,
    federation: Federation,
    sampling: Sampling,
    seed: int,
    scored: Callable[[int], Sequence[str]] = lambda round: (),
    least: int = 1,
) -> Iterator[Round]:
    """Endless rounds from where the server stands; `scored` says which parts trained models are scored on.

    A round in which fewer than `least` replies can be used leaves the server as it was.
    """
    while True:
        everyone = task.algorithm.opens_with_all and server.round == 0
        cohort = (Sampling() if everyone else sampling).cohort(task.clients, seed, server.round)
        message = broadcast(task, server)
        letters = {client: address(task, server, client) for client in cohort}
        gathered = gather(
            task, message, server.params, cohort, federation.train(message, letters, scored(server.round))
        )
        if gathered.replies is None or len(gathered.replies.ids) < least:
            after, step = server._replace(round=server.round + 1), None
        else:
            after, step = server_round(task, server, gathered.replies)
        gathered = gathered._replace(replies=None)  # as large as all clients; the next round needs the room
        if gathered.lost:
            after = after._replace(
                met={client: met for client, met in after.met.items() if client not in gathered.lost}
            )
        yield Round(server.round, after, message, letters, gathered.dropped, gathered.scores, step, gathered.sent)
        server = after


def evaluate(task: Task, server: Server, federation: Federation, stage: str = "personal") -> dict[int, Scores]:
    """Score every client, participants or not, with its own model after the broadcast or with the server's copy of
    everything; and either as it is or after local training, which leaves no trace. Stages as in `round`.
    """
    check.one_of("stage", stage, STAGES + TRAINED)
    server = server._replace(params=task.algorithm.deployed(server))
    message = broadcast(task, server)
    if stage.startswith("global"):
        letters = dict.fromkeys(range(task.clients), address(task, server, NEWCOMER))
    else:
        letters = {client: address(task, server, client) for client in range(task.clients)}
    return dict(sorted(federation.evaluate(message, letters, stage)))


def round_half_up(value: float) -> int:
    return int(value + 0.5)
