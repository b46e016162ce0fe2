"""Many clients at once for any model: the method's own step, vectorised by `torch.func.vmap`. Made for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedlag.algorithm import Phase, Steps
from fedlag.federation.cohorts import Together
from fedlag.federation.stacked import NotTogetherError
from fedlag.federation.vectorized_fit import fit_vectorized
from fedlag.federation.work import ClientWork, Source
from fedlag.flow import Client, Local, Server
from fedlag.round import Task, address, broadcast, client_begins, own_randomness
from fedlag.tree import Params


def obstacle(task: Task, server: Server, source: Source, seed: int) -> str:
    """What keeps this task's clients from training many at once; empty if nothing does. Tried out: one step of two."""
    message = broadcast(task, server)
    begun = []
    for client in range(min(2, task.clients)):
        work = ClientWork(source, seed, server.round, client)
        with own_randomness(task, work, "train"):
            begun.append(client_begins(task, message, address(task, server, client), Client(), work))
    locals, starts = [local for local, _ in begun], [params for _, params in begun]
    phases = [replace(phase, epochs=Steps(1)) for phase in task.algorithm.phases(task.training.length)]
    try:
        fit_vectorized(task, locals, starts, phases, "train")
    except NotTogetherError as error:
        return str(error)
    return ""


class Vectorized(Together):
    """Every step of all clients in a cohort whose batches are equally large is one call."""

    def together(
        self, task: Task, locals: Sequence[Local], starts: Sequence[Params], phases: Sequence[Phase], purpose: str
    ) -> list[tuple[Params, int]]:
        return fit_vectorized(task, locals, starts, phases, purpose)
