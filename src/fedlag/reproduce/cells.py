"""What came out of a plan: one cell for each row and column, beside the paper's number."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from fedlag import results
from fedlag.reproduce.paper import Printed, numbers
from fedlag.reproduce.study import Plan
from fedlag.results import Comparison, Estimate, Run

EARLY = 10  # rounds in which conflicts are counted, and at the end over which accuracies are averaged


class Measure(NamedTuple):
    """What is compared. `ours` as fedlag reports it; `printed` as the paper does."""

    title: str
    unit: str
    ours: Callable[[Run], float]
    printed: Callable[[Run], float]


class Cell(NamedTuple):
    ours: Estimate
    as_printed: Estimate  # measured as the paper measures
    printed: Printed | None
    others: dict[str, Estimate]  # whatever else is known of its runs; accuracies in percent
    runs: list[Run]

    @property
    def difference(self) -> float | None:
        """From the paper's number to ours, measured alike."""
        return None if self.printed is None else self.as_printed.mean - self.printed.mean


Cells = dict[tuple[str, str], Cell]


def read(plan: Plan, places: Mapping[str, Path]) -> Cells:
    """Read the runs of a plan; `places` are their folders by hash."""
    measure = MEASURES[plan.study.measure]
    paper = numbers(plan.study.printed).cells if plan.study.printed else {}
    made = {}
    for (row, column), experiments in plan.experiments.items():
        runs = [_called(row, results.read(places[one.hash])) for one in experiments]
        made[row, column] = Cell(
            ours=estimate(map(measure.ours, runs)),
            as_printed=estimate(map(measure.printed, runs)),
            printed=paper.get((row, plan.columns[column].printed)),
            others=_over_seeds([_others(run) for run in runs]),
            runs=runs,
        )
    return made


def comparison(made: Cells, column: str) -> Comparison:
    """A column's methods side by side, as `fedlag compare` has them."""
    return results.compare([run for (_, other), cell in made.items() if other == column for run in cell.runs])


def estimate(values: Iterable[float]) -> Estimate:
    known = np.array(list(values))
    return Estimate(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None)


def accuracies(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Rounds, and the mean over clients of their test accuracy after each, in percent."""
    grid = results.grid(run, "personal", "test")
    return grid.rounds, 100 * grid.means()


def shares(run: Run) -> tuple[list[str], np.ndarray]:
    """Layers in the model's order, and the share of conflicting pairs in percent, (layers, rounds)."""
    known = run.layers.filter(pc.field("pairs") > 0)
    names = list(dict.fromkeys(known["layer"].to_pylist()))
    share = 100 * known["conflicts"].to_numpy() / known["pairs"].to_numpy()
    made = np.full((len(names), int(run.manifest["rounds"])), np.nan)
    rows = [names.index(layer) for layer in known["layer"].to_pylist()]
    made[rows, known["round"].to_numpy() - 1] = share
    return names, made


def has_printed(made: Cells, column: str) -> bool:
    return any(cell.printed for (_, other), cell in made.items() if other == column)


def plus_minus(value: Estimate | Printed, sign: str = " ± ") -> str:
    mean, sd = value
    return f"{mean:.2f}" + ("" if sd is None else f"{sign}{sd:.2f}")


def _called(row: str, run: Run) -> Run:
    """Runs are shared between experiments, which may call them differently."""
    return dataclasses.replace(run, manifest={**run.manifest, "method": row})


def _headline(run: Run) -> float:
    return 100 * results.summarise(run).headline.mean


def _weighted(run: Run) -> np.ndarray:
    """Correct answers of all clients over all examples after each round, in percent."""
    grid = results.grid(run, "personal", "test")
    return np.asarray(100 * (grid.accuracy * grid.examples).sum(axis=1) / grid.examples.sum(axis=1))


def _others(run: Run) -> dict[str, float]:
    summary, (rounds, means) = results.summarise(run), accuracies(run)
    late = rounds > rounds[-1] - EARLY
    return {
        "weighted": 100 * summary.headline.weighted,
        "worst_tenth": 100 * summary.headline.worst,
        "last": 100 * summary.last.mean,
        f"last_{EARLY}": float(means[late].mean()),
        f"last_{EARLY}_weighted": float(_weighted(run)[late].mean()),
        "best_on_test": 100 * summary.optimistic.mean,
        "seconds_per_round": _seconds(run),
        "megabytes": (summary.down + summary.up) / 1e6,
    }


def _over_seeds(rows: list[dict[str, float]]) -> dict[str, Estimate]:
    return {name: estimate(row[name] for row in rows) for name in rows[0]}


def _seconds(run: Run) -> float:
    """The median round, as timed while it ran; evaluation counts where there was one."""
    lines = (run.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    ends = [0.0, *(json.loads(line)["seconds"] for line in lines)]
    return float(median(end - start for start, end in pairwise(ends)))


def _conflicts(run: Run) -> float:
    """Mean over layers and the first rounds."""
    return float(np.nanmean(shares(run)[1][:, :EARLY]))


MEASURES = {
    "accuracy": Measure("accuracy", "%", _headline, lambda run: float(_weighted(run).max())),
    "seconds": Measure("time for a round", "s", _seconds, _seconds),
    "conflicts": Measure(f"conflicting pairs in the first {EARLY} rounds", "%", _conflicts, _conflicts),
}
