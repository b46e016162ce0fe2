"""Methods side by side: the same data, partition, initial weights and sampling for all, on every core."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedlag import results
from fedlag.execution import RUNS
from fedlag.experiment import Experiment
from fedlag.files import write_atomically
from fedlag.pool import Watch, run_all


def compare(
    experiments: Sequence[Experiment],
    folder: Path | str = RUNS / "compare",
    workers: int | None = None,
    watch: Watch = lambda experiment, event: None,
) -> results.Comparison:
    """Run every experiment that isn't finished yet, each in a process of its own, and compare the results.

    Leaves a run directory for each under `folder`, with `comparison.json` beside them.
    """
    folder = Path(folder)
    places = [folder / one.folder for one in experiments]
    run_all(list(zip(experiments, places, strict=True)), workers, watch)
    comparison = results.compare([results.read(place) for place in places])
    report = {"verdict": results.verdict(comparison), "methods": results.rows(comparison)}
    write_atomically(folder / "comparison.json", (json.dumps(report, indent=2) + "\n").encode())
    return comparison
