"""Many clients at once, where the model is dense and the method trains it by ordinary steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from fedlag.algorithm import Algorithm, Phase
from fedlag.federation.cohorts import Together, coarse
from fedlag.federation.dense import Dense, chain
from fedlag.federation.dense_fit import fit_dense
from fedlag.federation.work import Source
from fedlag.flow import Local
from fedlag.optim import SGD, Adagrad, Adam, Yogi
from fedlag.round import Task
from fedlag.tree import Params

ELEMENTWISE = (SGD, Adagrad, Adam, Yogi)  # step every entry by itself, so stacked parameters as well as one client's


def obstacle(task: Task) -> str:
    """What keeps this task's clients from training many at once; empty if nothing does."""
    algorithm, name = task.algorithm, type(task.algorithm).__name__
    if reason := coarse(task):
        return reason
    for question in ("step", "loss", "predict"):
        if getattr(type(algorithm), question) is not getattr(Algorithm, question):
            return f"{name} has a {question} of its own"
    layers = chain(task.model)
    if layers is None:
        return "the model is not a chain of fully connected layers with ReLU, tanh or sigmoid between them"
    if layers.names != {*task.trained, *task.carried}:
        return f"{name} has parameters beside the model's"
    phases = (*algorithm.phases(task.training.length), *algorithm.tune)
    for optimizer in (task.training.optimizer, *(phase.optimizer for phase in phases if phase.optimizer)):
        if type(optimizer) not in ELEMENTWISE:
            return f"{type(optimizer).__name__} is not known to step every entry by itself"
    return ""


class Batched(Together):
    """Every layer of all clients in a cohort is one batched matrix product."""

    def __init__(self, task: Task, source: Source, seed: int, workers: int | None = None) -> None:
        super().__init__(task, source, seed, workers)
        self.obstacle = obstacle(task)
        self._chain = cast(Dense, chain(task.model))

    def together(
        self, task: Task, locals: Sequence[Local], starts: Sequence[Params], phases: Sequence[Phase], purpose: str
    ) -> list[tuple[Params, int]]:
        return fit_dense(task, self._chain, locals, starts, phases, purpose)
