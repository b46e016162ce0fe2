"""FLASH: a server that notices drift, and clients that stop early."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from fedlag import check
from fedlag.algorithm import Algorithm
from fedlag.flow import Batch, Local
from fedlag.optim import Flash, Optimizer
from fedlag.tree import Params, Tree


class Watch(NamedTuple):
    """State of a training that may end early."""

    optimizer: Tree
    length: int  # steps of an epoch
    steps: int = 0
    loss: float = math.inf  # on validation examples, before this epoch
    stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class FLASH(Algorithm):
    """Flash: Concept Drift Adaptation in Federated Learning (Panchal et al., ICML 2023).

    The server steps as `Flash` says. A client stops when over its e-th epoch the loss on its own validation examples
    fell by less than gamma / e: the batches after that change nothing.
    """

    server: Optimizer = Flash()
    gamma: float = 0.004

    def __post_init__(self) -> None:
        check.not_negative("gamma", self.gamma)

    def step(self, local: Local, params: Params, state: Tree, batch: Batch) -> tuple[Params, Tree]:
        watch = state if isinstance(state, Watch) else Watch(state, _epoch(local))
        if watch.steps % watch.length == 0 and not watch.stopped:
            done, loss = watch.steps // watch.length, self._validation_loss(local, params)
            watch = watch._replace(loss=loss, stopped=done > 0 and watch.loss - loss < self.gamma / done)
        optimizer = watch.optimizer
        if not watch.stopped:
            params, optimizer = super().step(local, params, optimizer, batch)
        return params, watch._replace(optimizer=optimizer, steps=watch.steps + 1)

    def _validation_loss(self, local: Local, params: Params) -> float:
        """NaN, which stops nobody, where there are no such examples."""
        x, y = local.work.examples("validation")
        with local.net.evaluating(), torch.no_grad():
            return float(functional.cross_entropy(self.predict(local, params, x), y)) if len(y) else math.nan


def _epoch(local: Local) -> int:
    return math.ceil(len(local.work.examples("train").y) / local.training.batch)
