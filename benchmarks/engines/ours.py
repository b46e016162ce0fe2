"""fedlag, through the functions that the command line calls too."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import fedlag
from benchmarks import workloads
from benchmarks.protocol import Clock, Outcome, Unavailable
from benchmarks.workloads import Workload
from fedlag.execution import prepare
from fedlag.federation.sequential import one_thread
from fedlag.run import evaluate, rounds


def run(workload: Workload, clock: Clock, federation: str = "auto", precision: str = "fp32") -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        _save(file, workload)
        parts = prepare(_experiment(workload, file, federation, precision))
    counted = Counted(parts.federation)
    coming = rounds(parts.task, parts.server, counted, parts.sampling, seed=0)
    clock.ready()
    with one_thread():  # as `execute` does
        for done in islice(coming, clock.rounds):
            if workload.evaluate:
                evaluate(parts.task, done.server, parts.federation)
            clock.lap()
    scores = [score["test"] for score in evaluate(parts.task, done.server, parts.federation, "global").values()]
    loss = sum(score.loss * score.examples for score in scores) / sum(score.examples for score in scores)
    return Outcome(loss, counted.steps / clock.rounds, parts.choice.name)


class Counted:
    """A federation that counts steps."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.steps = 0

    def train(self, *args: Any) -> Iterator[Any]:
        for client, reply in self.inner.train(*args):
            self.steps += reply.steps
            yield client, reply


def _experiment(workload: Workload, file: Path, federation: str, precision: str) -> fedlag.Experiment:
    rows = workload.train + workload.test + 1
    chosen = {"federation": federation, "precision": precision}
    known = {field.name for field in dataclasses.fields(fedlag.Experiment)}
    for setting, value in chosen.items():
        if setting not in known and value not in ("sequential", "fp32"):
            raise Unavailable(f"fedlag {version('fedlag')} has no setting {setting!r}")
    try:
        return fedlag.load(
            {
                "algorithm": "fedavg",
                "data": {
                    "name": str(file),
                    "split": "given",
                    "clients": workload.clients,
                    "validation": 1 / rows,
                    "test": workload.test / rows,
                },
                "model": {"name": workload.model} | ({"hidden": list(workload.hidden)} if workload.hidden else {}),
                "training": {"batch": workload.batch, "lr": workload.lr},
                **{setting: value for setting, value in chosen.items() if setting in known},
            }
        )
    except fedlag.InputError as error:
        raise Unavailable(str(error)) from error


def _save(file: Path, workload: Workload) -> None:
    """The images as a user's own data; one more of each client, because fedlag always validates on some."""
    clients = workloads.data(workload)
    np.savez(
        file,
        x=np.concatenate([np.concatenate([own.x, own.test_x, own.test_x[:1]]) for own in clients]),
        y=np.concatenate([np.concatenate([own.y, own.test_y, own.test_y[:1]]) for own in clients]),
        client=np.repeat(np.arange(workload.clients), workload.train + workload.test + 1),
    )
