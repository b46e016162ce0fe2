"""Clients that train together, as many as one call can take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedlag import tree
from fedlag.algorithm import Algorithm, Phase
from fedlag.federation.stacked import NotTogetherError
from fedlag.federation.threaded import Threaded
from fedlag.federation.work import HELD_OUT, ClientWork, Source
from fedlag.flow import Client, Letter, Local, Message, Reply, Scores
from fedlag.round import (
    Task,
    client_begins,
    client_ends,
    client_evaluate,
    client_replies,
    client_round,
    own_randomness,
    score,
    settle,
)
from fedlag.tree import Params

FEWEST, MOST = 10, 64  # clients that train together
CACHE = 2**22  # bytes of parameters beyond which more clients save little


class Together(Threaded):
    """Clients with about as many examples train together, a cohort on each core. Who can't, trains as in `Threaded`.

    Before and after training each client is on its own, as everywhere. Subclasses say how a cohort trains. When one is
    found that can't, its clients begin again one by one, and so does everybody from then on.
    """

    def __init__(self, task: Task, source: Source, seed: int, workers: int | None = None) -> None:
        super().__init__(task, source, seed, workers)
        self.obstacle = coarse(task)  # why nobody trains together
        self._most = min(MOST, max(FEWEST, CACHE // tree.nbytes(task.model.init())))

    def train(
        self, message: Message, letters: Mapping[int, Letter], scored: Sequence[str] = HELD_OUT
    ) -> Iterator[tuple[int, Reply | Exception]]:
        led = self._cohorts(letters)

        def one(task: Task, leader: int) -> list[tuple[int, Client, Reply | Exception]]:
            works = [ClientWork(self.source, self.seed, message.round, client, tuple(scored)) for client in led[leader]]
            return self._train(task, message, letters, works)

        for _, answers in self._each(one, led):
            for client, kept, reply in answers:
                self._clients[client] = kept
                yield client, reply
        yield from super().train(message, _others(letters, led), scored)

    def evaluate(
        self, message: Message, letters: Mapping[int, Letter], stage: str = "personal"
    ) -> Iterator[tuple[int, Scores]]:
        algorithm = self.task.algorithm
        tunes = algorithm.tune and type(algorithm).personalize is Algorithm.personalize and stage == "personal"
        led = self._cohorts(letters) if tunes else {}

        def one(task: Task, leader: int) -> list[tuple[int, Scores]]:
            works = [ClientWork(self.source, self.seed, message.round, client) for client in led[leader]]
            return self._tune(task, message, letters, works)

        for _, answers in self._each(one, led):
            yield from answers
        yield from super().evaluate(message, _others(letters, led), stage)

    def together(
        self, task: Task, locals: Sequence[Local], starts: Sequence[Params], phases: Sequence[Phase], purpose: str
    ) -> list[tuple[Params, int]]:
        """What `fit` gives each of these clients, most examples first; or NotTogetherError."""
        raise NotImplementedError

    def _train(
        self, task: Task, message: Message, letters: Mapping[int, Letter], works: Sequence[ClientWork]
    ) -> list[tuple[int, Client, Reply | Exception]]:
        """What `client_round` does, for a cohort."""
        try:
            return self._train_together(task, message, letters, works)
        except NotTogetherError as error:
            self.obstacle = str(error)
        rounds = [client_round(task, message, letters[work.client], self._known(work.client), work) for work in works]
        return [(work.client, *done) for work, done in zip(works, rounds, strict=True)]

    def _train_together(
        self, task: Task, message: Message, letters: Mapping[int, Letter], works: Sequence[ClientWork]
    ) -> list[tuple[int, Client, Reply | Exception]]:
        known = [self._known(work.client) for work in works]
        begun = []
        for work, client in zip(works, known, strict=True):
            with own_randomness(task, work, "train"):
                begun.append(client_begins(task, message, letters[work.client], client, work))
        locals, starts = [local for local, _ in begun], [params for _, params in begun]
        ends = self.together(task, locals, starts, task.algorithm.phases(task.training.length), "train")
        done = []
        for local, client, end in zip(locals, known, ends, strict=True):
            with own_randomness(task, local.work, "train"):
                ending = client_ends(task, local, *end)
            kept, reply = client_replies(task, client, local, ending)
            done.append((local.work.client, tree.own(kept), reply))
        return done

    def _tune(
        self, task: Task, message: Message, letters: Mapping[int, Letter], works: Sequence[ClientWork]
    ) -> list[tuple[int, Scores]]:
        """What `client_evaluate` does, for a cohort."""
        locals = [settle(task, message, letters[work.client], self._known(work.client), work) for work in works]
        try:
            ends = self.together(task, locals, [local.start for local in locals], task.algorithm.tune, "tune")
        except NotTogetherError as error:
            self.obstacle = str(error)
            known = [self._known(work.client) for work in works]
            return [
                (work.client, client_evaluate(task, message, letters[work.client], client, work))
                for work, client in zip(works, known, strict=True)
            ]
        return [(local.work.client, score(task, local, end)) for local, (end, _) in zip(locals, ends, strict=True)]

    def _cohorts(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """Those who train together, by who has most examples; none while something is in the way."""
        sizes = {} if self.obstacle else {client: self._longest_first.size(client) for client in clients}
        sizes = {client: size for client, size in sizes.items() if size}
        return {cohort[0]: cohort for cohort in cohorts(sizes, self._most)}


def coarse(task: Task) -> str:
    """Why products of low precision keep clients from training together; empty for full precision."""
    return "" if task.training.precision == "fp32" else "products in bfloat16 are taken for one client at a time"


def cohorts(sizes: Mapping[int, int], most: int) -> list[list[int]]:
    """Clients with about as many examples; cohorts with about as many examples, and an even number, for even cores.

    There are so many cohorts that of equally large clients none has more than `most`.
    """
    pieces = 2 * -(-len(sizes) // (2 * most))
    total, before = sum(sizes.values()), 0
    made: list[list[int]] = [[] for _ in range(pieces)]
    for client in sorted(sizes, key=lambda client: -sizes[client]):
        made[before * pieces // total].append(client)
        before += sizes[client]
    return [cohort for cohort in made if cohort]


def _others(letters: Mapping[int, Letter], led: Mapping[int, Sequence[int]]) -> dict[int, Letter]:
    """The letters of those who are in no cohort."""
    together = {client for cohort in led.values() for client in cohort}
    return {client: letter for client, letter in letters.items() if client not in together}
