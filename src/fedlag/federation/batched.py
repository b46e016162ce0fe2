"""Many clients at once, where the model is dense and the method trains it by ordinary steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from fedlag import tree
from fedlag.algorithm import Algorithm
from fedlag.federation.dense import Dense, chain
from fedlag.federation.sequential import Sequential, one_thread
from fedlag.federation.together import NotTogetherError, fit_together
from fedlag.federation.work import HELD_OUT, ClientWork, Source
from fedlag.federation.workers import cores, pool
from fedlag.flow import Client, Letter, Local, Message, Reply
from fedlag.optim import SGD, Adagrad, Adam, Yogi
from fedlag.round import Task, client_begins, client_ends, client_replies, own_randomness
from fedlag.tree import Params

COHORT = 10  # clients that train together; more save little, and their parameters fill the cache
WAVE = 8  # cohorts whose replies wait for each other
ELEMENTWISE = (SGD, Adagrad, Adam, Yogi)  # step every entry by itself, so stacked parameters as well as one client's

End = tuple[Params, int]  # parameters and steps taken


def obstacle(task: Task) -> str:
    """What keeps this task's clients from training many at once; empty if nothing does."""
    algorithm, name = task.algorithm, type(task.algorithm).__name__
    for question in ("step", "loss", "predict"):
        if getattr(type(algorithm), question) is not getattr(Algorithm, question):
            return f"{name} has a {question} of its own"
    if chain(task.model) is None:
        return "the model is not a chain of fully connected layers with ReLU, tanh or sigmoid between them"
    if sorted((*task.trained, *task.carried)) != sorted(task.model.parameter_names):
        return f"{name} has parameters beside the model's"
    phases = (*algorithm.phases(task.training.length), *algorithm.tune)
    for optimizer in (task.training.optimizer, *(phase.optimizer for phase in phases if phase.optimizer)):
        if type(optimizer) not in ELEMENTWISE:
            return f"{type(optimizer).__name__} is not known to step every entry by itself"
    return ""


class Begun(NamedTuple):
    """A participant about to train."""

    known: Client
    local: Local
    params: Params


class Batched(Sequential):
    """Clients with about as many examples train together, a cohort on each core. Who can't, takes its turn."""

    def __init__(self, task: Task, source: Source, seed: int, workers: int | None = None) -> None:
        super().__init__(task, source, seed)
        self.obstacle = obstacle(task)
        if not self.obstacle:
            self.task = replace(task, draws=False)  # fully connected layers draw no random numbers
        self.chain = chain(task.model)
        self.workers = workers or cores()
        self._pool = pool(self.workers)

    def train(
        self, message: Message, letters: Mapping[int, Letter], scored: Sequence[str] = HELD_OUT
    ) -> Iterator[tuple[int, Reply | Exception]]:
        sizes = {client: 0 if self.obstacle else len(self.source(client, "train").y) for client in letters}
        alone = {client: letter for client, letter in letters.items() if not sizes[client]}
        together = cohorts({client: size for client, size in sizes.items() if size})
        for first in range(0, len(together), WAVE):
            with one_thread():
                begun = [
                    [self._begin(message, letters[client], client, scored) for client in cohort]
                    for cohort in together[first : first + WAVE]
                ]
                ends = list(self._pool.map(self._fit, begun))
                replies = [
                    (one.local.work.client, self._reply(one, end))
                    for cohort, trained in zip(begun, ends, strict=True)
                    for one, end in zip(cohort, self._trained(cohort, trained), strict=True)
                ]
            yield from replies
        yield from super().train(message, alone, scored)

    def _begin(self, message: Message, letter: Letter, client: int, scored: Sequence[str]) -> Begun:
        work = ClientWork(self.source, self.seed, message.round, client, tuple(scored))
        known = self._clients.get(client, Client())
        with own_randomness(self.task, work, "train"):
            return Begun(known, *client_begins(self.task, message, letter, known, work))

    def _fit(self, cohort: Sequence[Begun]) -> list[End] | NotTogetherError:
        phases = self.task.algorithm.phases(self.task.training.length)
        locals, starts = [one.local for one in cohort], [one.params for one in cohort]
        try:
            return fit_together(self.task, cast(Dense, self.chain), locals, starts, phases, "train")
        except NotTogetherError as error:
            return error

    def _trained(self, cohort: Sequence[Begun], ends: list[End] | NotTogetherError) -> list[End]:
        """Those of a cohort that could not train together train one by one, and so does everybody from then on."""
        if isinstance(ends, NotTogetherError):
            self.obstacle = str(ends)
            phases = self.task.algorithm.phases(self.task.training.length)
            return [one.local.fit(one.params, phases, purpose="train") for one in cohort]
        return ends

    def _reply(self, one: Begun, end: End) -> Reply | Exception:
        work = one.local.work
        with own_randomness(self.task, work, "train"):
            ending = client_ends(self.task, one.local, *end)
        client, reply = client_replies(self.task, one.known, one.local, ending)
        self._clients[work.client] = client._replace(params=tree.own(client.params), memory=tree.own(client.memory))
        return reply


def cohorts(sizes: Mapping[int, int]) -> list[list[int]]:
    """Clients with about as many examples, about as many examples to a cohort; an even number, for even cores."""
    pieces = 2 * -(-len(sizes) // (2 * COHORT))
    total, before = sum(sizes.values()), 0
    made: list[list[int]] = [[] for _ in range(pieces)]
    for client in sorted(sizes, key=lambda client: -sizes[client]):
        made[before * pieces // total].append(client)
        before += sizes[client]
    return [cohort for cohort in made if cohort]
