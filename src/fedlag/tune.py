"""Learning rates chosen for all methods alike: the same grid, judged on validation data, every trial counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from fedlag import check, results
from fedlag.comparison import run_all
from fedlag.config import Table, make_dataclass
from fedlag.experiment import Experiment, controls, make_comparison, over_seeds
from fedlag.files import write_atomically
from fedlag.pool import Watch, ignore


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The `[tune]` table: the learning rates that every method tries, and over how many seeds."""

    lr: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    seeds: int = 1

    def __post_init__(self) -> None:
        check.require(len(self.lr) > 1, "tune.lr", list(self.lr), "two learning rates or more")
        for lr in self.lr:
            check.positive("tune.lr", lr)
        check.count("tune.seeds", self.seeds, least=1)


class Choice(NamedTuple):
    """What a method tried, and what it does best with."""

    method: str
    lr: float
    trials: int  # runs
    accuracy: dict[float, float]  # learning rate -> mean validation accuracy in the round where that is highest

    @property
    def at_the_edge(self) -> bool:
        """Whether a learning rate outside the grid may do better still."""
        return self.lr in (min(self.accuracy), max(self.accuracy))


def trials(base: Mapping[str, Any]) -> list[tuple[Table, float, list[Experiment]]]:
    """Every method of the comparison, controls included, with every learning rate: one experiment for each seed."""
    tuning = make_dataclass(Tuning, base.get("tune", {}), "tune")
    comparison = make_comparison(base)
    seeds = replace(comparison, seeds=tuning.seeds)
    return [
        (entry, lr, over_seeds(base, _with_training(entry, lr=lr), seeds))
        for entry in [*comparison.entries(), *controls(base)]
        for lr in tuning.lr
    ]


def tune(
    base: Mapping[str, Any], folder: Path | str, workers: int | None = None, watch: Watch = ignore
) -> tuple[list[Choice], Table]:
    """Run the trials that aren't finished yet; returns what was chosen, and `base` with that in its `compare` table.

    Leaves a directory for each trial under `folder`, with `tune.json` and `tuned.toml` beside them.
    """
    folder, tried = Path(folder), trials(base)
    runs = run_all([one for _, _, seeds in tried for one in seeds], folder, workers, watch)
    accuracy = {run.folder: results.summarise(run).validation for run in runs}
    choices: dict[str, Choice] = {}
    entries: dict[str, Table] = {}
    for entry, lr, seeds in tried:
        title = seeds[0].title
        mean = float(np.mean([accuracy[folder / one.folder] for one in seeds]))
        before = choices.get(title, Choice(title, lr, 0, {}))
        found = {**before.accuracy, lr: mean}
        best = max(found, key=lambda rate: round(found[rate], 12))  # the first of those equally good
        choices[title] = Choice(title, best, before.trials + len(seeds), found)
        entries[title] = {**_with_training(entry, lr=best), "trials": choices[title].trials}
    kept = {key: value for key, value in base.get("compare", {}).items() if key != "lag"}
    tuned = {**base, "compare": {**kept, "methods": list(entries.values())}}
    report = [{**one._asdict(), "at_the_edge": one.at_the_edge} for one in choices.values()]
    write_atomically(folder / "tune.json", (json.dumps(report, indent=2) + "\n").encode())
    write_atomically(folder / "tuned.toml", tomli_w.dumps(tuned).encode())
    return list(choices.values()), tuned


def rows(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """For a person: validation accuracy in percent at every learning rate, and which was chosen."""
    return [
        {
            "method": results.title(one.method),
            **{f"{lr:g}": f"{100 * accuracy:.1f}" for lr, accuracy in one.accuracy.items()},
            "chosen": f"{one.lr:g}" + (" (edge)" if one.at_the_edge else ""),
            "trials": one.trials,
        }
        for one in choices
    ]


def _with_training(entry: Table, **settings: Any) -> Table:
    return {**entry, "training": {**entry.get("training", {}), **settings}}
