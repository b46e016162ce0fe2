"""Many clients at once for any model: the method's own step, vectorised by `torch.func.vmap`. Made for GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from fedlag.algorithm import Phase
from fedlag.federation.cohorts import Together
from fedlag.federation.vectorized_fit import fit_vectorized
from fedlag.flow import Local
from fedlag.round import Task
from fedlag.tree import Params


class Vectorized(Together):
    """Every step of all clients in a cohort whose batches are equally large is one call."""

    def together(
        self, task: Task, locals: Sequence[Local], starts: Sequence[Params], phases: Sequence[Phase], purpose: str
    ) -> list[tuple[Params, int]]:
        return fit_vectorized(task, locals, starts, phases, purpose)
