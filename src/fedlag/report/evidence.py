"""The numbers a report shows, gathered from runs as plain rows: accuracies in percent, gains in points, megabytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from fedlag import labels, results
from fedlag.errors import unknown
from fedlag.results import Comparison, Run, title

Row = dict[str, Any]

TO_BEAT = ("local", "fedavg", "fedavg-ft")

# The page stays small, so there is only so much room:
ROUNDS = 120  # shown of each curve
POINTS = 5_000  # of all curves together
GAINS = 12_000  # clients with a seed and a method
CELLS = 8_000  # clients with a label


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything a report says."""

    focus: str  # the method the verdict is about
    comparison: Comparison  # that method first, then what it has to beat, then the others, most accurate first
    runs: tuple[Run, ...]

    @property
    def methods(self) -> list[str]:
        return list(self.comparison.methods)

    def of(self, method: str) -> list[Run]:
        """A method's runs, by seed."""
        return sorted((run for run in self.runs if run.method == method), key=lambda run: run.seed)


def gather(runs: Sequence[Run], focus: str | None = None) -> Evidence:
    comparison = results.compare(runs)
    known = comparison.methods
    if focus is None:
        focus = _focus(comparison, runs)
    elif focus not in known:
        raise unknown("method", focus, known)
    first = [name for name in dict.fromkeys((focus, *TO_BEAT)) if name in known]
    others = sorted(known.keys() - first, key=lambda name: (-known[name].accuracy, name))
    ordered = {name: known[name] for name in (*first, *others)}
    return Evidence(focus, dataclasses.replace(comparison, methods=ordered), tuple(runs))


def _focus(comparison: Comparison, runs: Sequence[Run]) -> str:
    """FedLAG if it was run, else the first method that measures conflicts, else the most accurate."""
    measuring = [run.method for run in runs if run.layers["pairs"].null_count < len(run.layers)]
    best = max(comparison.methods.values(), key=lambda method: method.accuracy).name
    return "fedlag" if "fedlag" in comparison.methods else (measuring or [best])[0]


def curves(evidence: Evidence) -> list[Row]:
    """Mean over clients of their own models' test accuracy: over seeds the mean, the lowest and the highest."""
    made = []
    for method in evidence.methods:
        grids = [results.grid(run, "personal", "test") for run in evidence.of(method)]
        rounds = sorted(set.intersection(*(set(grid.rounds.tolist()) for grid in grids)))
        values = np.array([grid.means()[np.isin(grid.rounds, rounds)] for grid in grids])
        sent = np.mean([_sent(run, rounds) for run in evidence.of(method)], axis=0)
        for place in spread(len(rounds), min(ROUNDS, POINTS // len(evidence.methods))):
            own = 100 * values[:, place]
            made.append(
                {
                    "method": title(method),
                    "round": rounds[place],
                    "mean": round(float(own.mean()), 3),
                    "low": round(float(own.min()), 3),
                    "high": round(float(own.max()), 3),
                    "megabytes": round(float(sent[place]), 4),
                }
            )
    return made


def headlines(evidence: Evidence) -> list[Row]:
    """Where each run stands in the round chosen on validation data."""
    return [
        {"method": title(name), "seed": seed, "round": run.headline.round, "mean": round(100 * run.headline.mean, 3)}
        for name in evidence.methods
        for seed, run in evidence.comparison.methods[name].runs.items()
    ]


def gains(evidence: Evidence) -> dict[str, list[Row]]:
    """Points over training alone of each client with each seed, by method, the most fortunate first."""
    return _fitting({title(name): rows for name in evidence.methods if (rows := _gains(evidence, name))}, GAINS)


def _gains(evidence: Evidence, name: str) -> list[Row]:
    method, local = evidence.comparison.methods[name], evidence.comparison.methods.get("local")
    if method.gain is None or local is None:
        return []
    made = []
    for place in np.lexsort((method.gain.clients, method.gain.seeds, -method.gain.points)):
        seed, client = int(method.gain.seeds[place]), int(method.gain.clients[place])
        own, alone = method.runs[seed].headline, local.runs[seed].headline
        here, there = (int(np.flatnonzero(one.clients == client)[0]) for one in (own, alone))
        made.append(
            {
                "client": client,
                "seed": seed,
                "points": round(float(method.gain.points[place]), 3),
                "accuracy": round(100 * float(own.accuracy[here]), 2),
                "alone": round(100 * float(alone.accuracy[there]), 2),
                "examples": int(own.examples[here]),
            }
        )
    return made


def holdings(evidence: Evidence) -> dict[str, list[Row]]:
    """Examples of each label that clients hold, all parts together; by partition, named for the seeds that use it."""
    seeds: dict[str, list[int]] = {}
    rows: dict[str, list[Row]] = {}
    for run in sorted(evidence.runs, key=lambda run: run.seed):
        key = run.manifest.get("partition", f"of seed {run.seed}")
        if run.seed not in seeds.setdefault(key, []):
            seeds[key].append(run.seed)
        if not rows.get(key):
            table = labels.load(run.folder).group_by(["client", "label"]).aggregate([("examples", "sum")])
            rows[key] = [
                {"client": row["client"], "label": row["label"], "examples": row["examples_sum"]}
                for row in table.sort_by([("client", "ascending"), ("label", "ascending")]).to_pylist()
            ]
    return _fitting({_seeds(seeds[key]): own for key, own in rows.items() if own}, CELLS)


def traffic(evidence: Evidence) -> list[Row]:
    """Megabytes of a whole run by method, direction and layer, on average over seeds."""
    made = []
    for method in evidence.methods:
        runs = evidence.of(method)
        sums: dict[tuple[str, str], float] = {}
        for run in runs:
            table = run.bytes.group_by(["direction", "layer"]).aggregate([("bytes", "sum")])
            for row in table.to_pylist():
                key = row["direction"], row["layer"]
                sums[key] = sums.get(key, 0.0) + row["bytes_sum"] / len(runs) / 1e6
        made += [
            {"method": title(method), "direction": direction, "layer": layer, "megabytes": round(value, 6)}
            for (direction, layer), value in sums.items()
        ]
    return made


def dropped(evidence: Evidence) -> int:
    """Replies that could not be used, in all runs together."""
    return sum(run.dropped.num_rows for run in evidence.runs)


def _sent(run: Run, rounds: Sequence[int]) -> list[float]:
    """Megabytes both ways up to the end of each of these rounds."""
    return [(pc.sum(run.bytes.filter(pc.field("round") <= round)["bytes"]).as_py() or 0) / 1e6 for round in rounds]


def spread(available: int, wanted: int) -> list[int]:
    """At most `wanted` of the places 0 … available - 1, evenly spread, the last always among them."""
    if wanted < 1:
        return []
    return sorted({round(place) for place in np.linspace(available - 1, 0, min(available, wanted))})


def _fitting(groups: dict[str, list[Row]], room: int) -> dict[str, list[Row]]:
    """The first groups that have room together."""
    return {name: rows for name, rows in groups.items() if (room := room - len(rows)) >= 0}


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
