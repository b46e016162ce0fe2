"""What the paper's theory says, beside what is measured: the lemma of improvement and the convergence bound."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from fedlag.aggregate import Mean
from fedlag.algorithm import Training
from fedlag.algorithms.fedavg import FedAvg
from fedlag.birth import born
from fedlag.data.federated import Federated, federate
from fedlag.experiment import Experiment
from fedlag.federation.sequential import one_thread
from fedlag.federation.work import Source
from fedlag.files import write_atomically, writing
from fedlag.flow import Batch
from fedlag.lemma.convergence import Bound, bowls, convergence, window
from fedlag.lemma.improvement import Agreement, Kept, agreement, keep_or_average
from fedlag.net import Model, Net
from fedlag.optim import SGD
from fedlag.round import begin
from fedlag.toy.data import non_iid
from fedlag.toy.training import FULL_BATCH, ORIGIN, Line

ALGORITHM = FedAvg(aggregator=Mean(weighting="uniform"))  # the lemma counts clients equally
ROUNDS = 30


class Theory(NamedTuple):
    kept: dict[str, list[Kept]]  # setting -> every layer and round looked at
    bounds: list[Bound]


def theory(experiment: Experiment, seed: int = 0, rounds: int = ROUNDS) -> Theory:
    """Keep or average every layer on the toy and on the experiment's data; the bound in bowls.

    On the data once with single full steps, which the lemma is about, and once trained as the experiment says.
    """
    kept = {f"toy, {steps} full steps": _toy(seed, steps, rounds) for steps in (1, 5)}
    trained = {
        "one full step": Training(steps=1, batch=FULL_BATCH, optimizer=experiment.training.optimizer),
        "as trained": experiment.training,
    }
    for how, training in trained.items():
        one = dataclasses.replace(experiment, algorithm=ALGORITHM, training=training)
        federated = federate(one.data)
        task, server = born(one, federated.dataset.x.shape[1:], federated.dataset.classes, federated.clients)
        found = keep_or_average(task, server, _source(federated), experiment.seed, rounds)
        kept[f"{experiment.data.name}, {how}"] = found
    return Theory(kept, convergence(bowls(seed)))


def lemma(experiment: Experiment, folder: Path, seed: int = 0, rounds: int = ROUNDS) -> Theory:
    """As `theory`; writes everything to `lemma.json` in the folder."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with one_thread():
        found = theory(experiment, seed, rounds)
    content = {
        "kept": {setting: [case._asdict() for case in cases] for setting, cases in found.kept.items()},
        "agreement": {setting: agreement(cases)._asdict() for setting, cases in found.kept.items()},
        "bounds": [bound._asdict() for bound in found.bounds],
        "window": {steps: window(steps) for steps in sorted({bound.steps for bound in found.bounds})},
    }
    write_atomically(folder / "lemma.json", (json.dumps(content, indent=1) + "\n").encode())
    return found


def rows(found: Theory) -> dict[str, list[dict[str, Any]]]:
    """Two tables for a person to read."""
    agreed = [{"setting": setting, **_plain(agreement(cases))} for setting, cases in found.kept.items()]
    titles = ("E", "rate x 6EL", "personal", "bound", "mean above", "last above", "A")
    bounds = [dict(zip(titles, _plain(bound).values(), strict=True)) for bound in found.bounds]
    return {"keep or average": agreed, "bound": bounds}


def _plain(values: Agreement | Bound) -> dict[str, Any]:
    return {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in values._asdict().items()}


def _source(federated: Federated) -> Source:
    return cache(lambda client, part: Batch(*federated.examples(client, part)))


def _toy(seed: int, steps: int, rounds: int) -> list[Kept]:
    users = non_iid(seed)
    training = Training(steps=steps, batch=FULL_BATCH, optimizer=SGD(lr=0.05))
    task, server = begin(ALGORITHM, Model(Net(nn.Identity(), Line(ORIGIN))), training, len(users), seed=0)
    return keep_or_average(task, server, lambda client, part: users[client], seed, rounds, unit="tensor")
