"""Methods side by side: the same data, partition, initial weights and sampling for all, on every core."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from fedlag import results
from fedlag.execution import RUNS
from fedlag.experiment import Experiment
from fedlag.files import write_atomically
from fedlag.pool import Watch, execute_all, ignore


def compare(
    experiments: Sequence[Experiment],
    folder: Path | str = RUNS / "compare",
    workers: int | None = None,
    watch: Watch = ignore,
    added: Collection[str] = (),
) -> results.Comparison:
    """Run every experiment that isn't finished yet, each in a process of its own, and compare the results.

    Leaves a run directory for each under `folder`, with `comparison.json` beside them. added: titles of the methods
    nobody asked for, to be marked.
    """
    folder = Path(folder)
    comparison = results.compare(run_all(experiments, folder, workers, watch), added)
    report = {"verdict": results.verdict(comparison), "methods": results.rows(comparison)}
    write_atomically(folder / "comparison.json", (json.dumps(report, indent=2) + "\n").encode())
    return comparison


def run_all(
    experiments: Sequence[Experiment], folder: Path, workers: int | None = None, watch: Watch = ignore
) -> list[results.Run]:
    """What isn't finished yet is run, each experiment in a directory of its own under `folder`; then all are read."""
    places = [folder / one.folder for one in experiments]
    execute_all(list(zip(experiments, places, strict=True)), workers, watch)
    return [results.read(place) for place in places]
