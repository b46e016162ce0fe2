"""Which federation trains the clients on this machine: asked for by name, or chosen."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from fedlag.federation import Federation
from fedlag.federation.batched import Batched, obstacle
from fedlag.federation.processes import FORKS, Processes
from fedlag.federation.sequential import Sequential, one_thread
from fedlag.federation.threaded import Threaded
from fedlag.federation.vectorized import Vectorized
from fedlag.federation.work import Source
from fedlag.federation.workers import cores
from fedlag.fit import gradient
from fedlag.flow import Batch
from fedlag.randomness import draws
from fedlag.round import Task

Make = Callable[[Task, Source, int, int], Federation]

FEDERATIONS: dict[str, Make] = {
    "sequential": lambda task, source, seed, workers: Sequential(task, source, seed),
    "threaded": Threaded,
    "processes": Processes,
    "batched": Batched,
    "vectorized": Vectorized,
}
NAMES = ("auto", *FEDERATIONS)

LONG_STEP = 1e-3  # seconds; in shorter ones Python has so large a part that threads wait for each other


class Choice(NamedTuple):
    name: str
    why: str
    workers: int


def choose(name: str, task: Task, source: Source, workers: int | None = None) -> Choice:
    """The federation of this name; for "auto", the fastest for the task on so many cores (all unless given).

    What is chosen depends on the machine only where the bits do not depend on what is chosen.
    """
    workers = workers or cores()
    if name != "auto":
        return Choice(name, "as asked", workers)
    if task.model.device.type != "cpu":
        return Choice("sequential", "one client after another on a GPU; 'vectorized' trains many at once", 1)
    reason = obstacle(task)
    if not reason:
        return Choice("batched", "many clients at once, as batched matrix products", workers)
    if workers == 1:
        return Choice("sequential", "one core for one client after another", 1)
    batch = first_batch(task, source)
    seconds = step_seconds(task, batch)
    if draws(task.model, batch.x[:2]):
        reason = "the network draws random numbers, and a process has one generator"
    elif seconds < LONG_STEP:
        reason = f"a step takes {seconds * 1000:.2g} ms, too short for threads"
    else:
        return Choice(
            "threaded", f"one client on each of {workers} cores; a step takes {seconds * 1000:.2g} ms", workers
        )
    if FORKS:
        return Choice("processes", f"{reason}: one on each of {workers} cores", workers)
    return Choice("sequential", reason, 1)


def make(choice: Choice, task: Task, source: Source, seed: int) -> Federation:
    return FEDERATIONS[choice.name](task, source, seed, choice.workers)


def first_batch(task: Task, source: Source) -> Batch:
    """Of the first client that has examples."""
    for client in range(task.clients):
        x, y = source(client, "train")
        if len(y):
            return Batch(x[: task.training.batch], y[: task.training.batch])
    raise LookupError("no client has training examples")


def step_seconds(task: Task, batch: Batch) -> float:
    """What one step of training the plain model takes on one core: the median of a few."""
    model, params = task.model, task.model.init()
    model.train(model.parameter_names)
    grad = gradient(model.parameter_names, (), lambda p: model(p, batch.x).logsumexp(1).sum())
    taken = []
    with one_thread():
        for _ in range(5):
            began = time.perf_counter()
            grad(params)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)
