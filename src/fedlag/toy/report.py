"""What came out, as numbers for machines and as sentences for people."""

from __future__ import annotations

from typing import Any

from fedlag.toy.experiment import Experiment
from fedlag.toy.training import SCALARS, Run


def numbers(experiment: Experiment) -> list[dict[str, Any]]:
    """One row for each run: how it ended, and conflicting pairs by round where users told what moved."""
    return [
        *(_row(kind, "FedAvg", run) | _conflicts(run) for kind, run in experiment.fedavg.items()),
        *(_row(kind, "FedAvg", run) | _conflicts(run) for kind, run in experiment.aside.items()),
        _row("non-IID", "FedLAG, k=1, each scalar a layer", experiment.lag) | _conflicts(experiment.lag),
        _row("non-IID", "alone", experiment.alone),
        *(_row(kind, "alone, settled", run) for kind, run in experiment.settled.items()),
        _row("everybody's points", "alone, settled", experiment.pooled),
    ]


def sentences(experiment: Experiment) -> list[str]:
    best = experiment.pooled
    told = [f"The best line for all points: {_line(best)}; right on {_accuracy(best):.1f} %."]
    for kind, run in experiment.fedavg.items():
        first, last = run.conflicts[0], run.conflicts[-1]
        told.append(
            f"{kind}, FedAvg: {_line(run)}; right on {_accuracy(run):.1f} %. "
            f"{first.count} of {first.pairs} pairs of users conflict in the first round, {last.count} in the last."
        )
    personal = sorted(frozenset().union(*experiment.lag.personal))
    told.append(
        f"non-IID, FedLAG with one personal scalar (it chose {', '.join(personal)}): right on "
        f"{_accuracy(experiment.lag):.1f} %; every user alone, for as long: {_accuracy(experiment.alone):.1f} %, "
        f"and until it settles: {_accuracy(experiment.settled['non-IID']):.1f} %."
    )
    return told


def _row(data: str, method: str, run: Run) -> dict[str, Any]:
    """`models` are those the users end with, (w1, w2, b) each."""
    return {
        "data": data,
        "method": method,
        "start": run.shared[0].tolist(),
        "models": run.models[-1].tolist(),
        "accuracy": run.accuracy()[-1].tolist(),
        "loss": run.loss()[-1].tolist(),
        "mean_accuracy": run.accuracy().mean(1).tolist(),
    }


def _conflicts(run: Run) -> dict[str, Any]:
    return {
        "conflicts": [conflict.count for conflict in run.conflicts],
        "scalar_conflicts": {scalar: [found[scalar].count for found in run.scalar_conflicts] for scalar in SCALARS},
    }


def _line(run: Run) -> str:
    return ", ".join(f"{name} = {value:z.2f}" for name, value in zip(SCALARS, run.models[-1, 0].tolist(), strict=True))


def _accuracy(run: Run) -> float:
    return 100 * float(run.accuracy()[-1].mean())
