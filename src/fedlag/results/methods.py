"""Methods side by side, over the seeds and clients they have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedlag.errors import InputError
from fedlag.results.reading import Run
from fedlag.results.scores import NUMBERS, Floats, Ints, Summary, summarise
from fedlag.significance import LOSES, Contrast, contrast, corrected

LOCAL, TUNED = "local", "fedavg-ft"
CONTROLS = {  # what every method has to beat, and its name in a sentence
    LOCAL: "training alone",
    "fedavg": "FedAvg",
    TUNED: "FedAvg+FT",
    "warmstart": "the warm start",
    "random-layers": "layers drawn by lot",
}


@dataclass(frozen=True, eq=False)
class Gain:
    """Percentage points over another method, of each client with each seed both have."""

    seeds: Ints  # (pairs,)
    clients: Ints  # (pairs,)
    partitions: Ints  # (pairs,), numbered: the same client of the same partition holds the same data
    points: Floats  # (pairs,)

    @property
    def by_seed(self) -> Floats:
        """Means over clients, (seeds,)."""
        return _means(self.points, self.seeds)

    @property
    def by_client(self) -> Floats:
        """Means over the seeds that divide the data alike, (clients of all partitions,)."""
        return _means(self.points, self.partitions, self.clients)

    @property
    def gaining(self) -> int:
        return int((self.points > 0).sum())

    @property
    def losing(self) -> int:
        return int((self.points < 0).sum())

    @property
    def equal(self) -> int:
        return int((self.points == 0).sum())

    @property
    def mean(self) -> float:
        return float(self.points.mean())

    @property
    def median(self) -> float:
        return float(np.median(self.points))

    @property
    def harmed(self) -> float:
        """Share of clients that lose."""
        return self.losing / len(self.points)


GAINS: dict[str, Callable[[Gain], float]] = {
    "gain_points": lambda gain: gain.mean,
    "median_gain_points": lambda gain: gain.median,
    "gaining": lambda gain: gain.gaining,
    "losing": lambda gain: gain.losing,
    "equal": lambda gain: gain.equal,
    "harmed": lambda gain: gain.harmed,
}


class Estimate(NamedTuple):
    """A number over seeds."""

    mean: float
    sd: float | None  # sample standard deviation; None for a single seed


@dataclass(frozen=True, eq=False)
class Method:
    """A method's runs, by seed."""

    name: str
    runs: dict[int, Summary]
    gain: Gain | None = None  # over Local with the same seed; None for Local itself, and where there is none

    @property
    def accuracy(self) -> float:
        """Of the headline round, mean over clients and seeds."""
        return float(np.mean([run.headline.mean for run in self.runs.values()]))

    @property
    def trials(self) -> int:
        """Runs made to choose its settings."""
        return max(run.trials for run in self.runs.values())

    def over_seeds(self, number: str) -> Estimate | None:
        """One of `NUMBERS`; None where a run doesn't have it."""
        values = [NUMBERS[number](run) for run in self.runs.values()]
        known = np.array([value for value in values if value is not None])
        if len(known) < len(values):
            return None
        return Estimate(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods side by side, in the order in which they were given."""

    methods: dict[str, Method]
    added: frozenset[str] = frozenset()  # not asked for: every comparison has them

    def against(self, name: str) -> dict[str, Contrast]:
        """How every other method with a seed in common stands to one, corrected for testing them all."""
        reference = self.methods.get(name)
        if reference is None:
            return {}
        gains = {one.name: over(one, reference) for one in self.methods.values() if one is not reference}
        return corrected({other: contrast(gain.by_seed, gain.by_client) for other, gain in gains.items() if gain})

    @property
    def leaders(self) -> list[str]:
        """The method with the highest mean accuracy, and those that are not shown to be worse."""
        best = max(self.methods.values(), key=lambda method: method.accuracy)
        beaten = {name for name, one in self.against(best.name).items() if one.outcome == LOSES}
        return [name for name in self.methods if name not in beaten]


def compare(runs: Sequence[Run], added: Collection[str] = ()) -> Comparison:
    """Runs by method and seed. Those of one seed must divide the data alike, or their clients are not the same."""
    _refuse_other_data(runs)
    summaries: dict[str, dict[int, Summary]] = {}
    for run in runs:
        own = summaries.setdefault(run.method, {})
        if run.seed in own:
            raise InputError(
                f"{own[run.seed].folder} and {run.folder} are both of {run.method!r} with seed {run.seed}; "
                "leave one out, or give it a label of its own."
            )
        own[run.seed] = summarise(run)
    methods = {name: Method(name, own) for name, own in summaries.items()}
    if LOCAL in methods:
        alone = methods[LOCAL]
        methods |= {
            name: replace(method, gain=over(method, alone)) for name, method in methods.items() if name != LOCAL
        }
    return Comparison(methods, frozenset(added))


def over(one: Method, other: Method) -> Gain | None:
    """What the clients of one method have over another's; None without a seed in common."""
    seeds = [seed for seed in one.runs if seed in other.runs]
    partitions = {name: number for number, name in enumerate(dict.fromkeys(one.runs[seed].division for seed in seeds))}
    columns = []
    for seed in seeds:
        mine, theirs = one.runs[seed].headline, other.runs[seed].headline
        both, here, there = np.intersect1d(mine.clients, theirs.clients, return_indices=True)
        points = 100 * (mine.accuracy[here] - theirs.accuracy[there])
        columns.append(
            (np.full(len(both), seed), both, np.full(len(both), partitions[one.runs[seed].division]), points)
        )
    return Gain(*map(np.concatenate, zip(*columns, strict=True))) if columns else None


def difference(one: Method, other: Method) -> float | None:
    """Points by which the first's headline accuracy is above the other's, on average over the seeds both have."""
    gain = over(one, other)
    return float(gain.by_seed.mean()) if gain else None


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One dict of plain values for each method: means over seeds, and their spread as `…_sd`.

    `against` holds what the tests say: by how much it is ahead of every control, and whether that is more than luck.
    """
    references = {name: comparison.against(name) for name in CONTROLS}
    made = []
    for method in comparison.methods.values():
        row: dict[str, Any] = {
            "method": method.name,
            "seeds": sorted(method.runs),
            "trials": method.trials,
            "added": method.name in comparison.added,
            "leader": method.name in comparison.leaders,
        }
        for number in NUMBERS:
            estimate = method.over_seeds(number)
            row |= {number: estimate and estimate.mean, f"{number}_sd": estimate and estimate.sd}
        for number in GAINS:
            row[number] = GAINS[number](method.gain) if method.gain else None
        row["against"] = {
            reference: {**family[method.name]._asdict(), "outcome": family[method.name].outcome}
            for reference, family in references.items()
            if method.name in family
        }
        made.append(row)
    return made


def _means(values: Floats, *groups: Ints) -> Floats:
    """Of the values that stand together in all groups."""
    _, place = np.unique(np.stack(groups), axis=1, return_inverse=True)
    return np.asarray(np.bincount(place, values) / np.bincount(place))


def _refuse_other_data(runs: Sequence[Run]) -> None:
    first: dict[int, Run] = {}
    for run in runs:
        if "partition" not in run.manifest:
            continue  # it hasn't finished
        peer = first.setdefault(run.seed, run)
        if peer.manifest["partition"] != run.manifest["partition"]:
            raise InputError(
                f"{peer.folder} and {run.folder} have seed {run.seed} but divide the data differently, so their "
                "clients cannot be compared; run them with the same data settings."
            )
