"""What came out of runs: read, summarise, compare, say it in a sentence.

Accuracies are shares of 1, gains are percentage points. The round that counts (the headline) is chosen on validation
data; numbers from the round that happens to be best on test data are called optimistic.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedlag import tables
from fedlag.errors import InputError

LOCAL, TUNED = "local", "fedavg-ft"  # what every method has to beat
TITLES = {"local": "Local", "fedavg": "FedAvg", "fedavg-ft": "FedAvg+FT", "fedlag": "FedLAG"}

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """A run's folder, read."""

    folder: Path
    experiment: dict[str, Any]
    manifest: dict[str, Any]
    rounds: pa.Table
    layers: pa.Table
    bytes: pa.Table
    dropped: pa.Table

    @property
    def method(self) -> str:
        return str(self.manifest["method"])

    @property
    def seed(self) -> int:
        return int(self.manifest["seed"])


@dataclass(frozen=True, eq=False)
class Grid:
    """How one stage's models do on one part, for every round they were scored in and every client."""

    name: str  # for messages
    rounds: Ints  # (rounds,)
    clients: Ints  # (clients,)
    accuracy: Floats  # (rounds, clients), zero without examples
    examples: Floats  # (rounds, clients), zero for a client that wasn't scored

    def means(self) -> Floats:
        """Mean accuracy of each round over the clients with examples, (rounds,); zero where there are none."""
        counts = np.maximum((self.examples > 0).sum(axis=1), 1)
        return np.asarray(self.accuracy.sum(axis=1) / counts)

    def best(self) -> int:
        """The first round with the highest mean."""
        if not self.examples.any():
            raise InputError(f"There are no {self.name}: the run has not come to its first evaluation; resume it.")
        # Rounded: where equally much is right, the order of a sum must not decide.
        return int(self.rounds[self.means().round(12).argmax()])

    def at(self, round: int) -> Spread:
        place = np.flatnonzero(self.rounds == round)
        have = self.examples[place].any(axis=0)
        if not have.any():
            raise InputError(f"There are no {self.name} after round {round}; run it again.")
        return Spread(round, self.clients[have], self.accuracy[place[0], have], self.examples[place[0], have])


@dataclass(frozen=True, eq=False)
class Spread:
    """Test accuracies of one round over the clients that have test examples."""

    round: int
    clients: Ints  # (clients,)
    accuracy: Floats  # (clients,)
    examples: Floats  # (clients,)

    @property
    def mean(self) -> float:
        return float(self.accuracy.mean())

    @property
    def weighted(self) -> float:
        """Weighted by test examples: correct answers of all clients over all examples."""
        return float(np.average(self.accuracy, weights=self.examples))

    @property
    def median(self) -> float:
        return float(np.median(self.accuracy))

    @property
    def worst(self) -> float:
        """Mean of the worst tenth of the clients, of at least one."""
        tenth = -(-len(self.accuracy) // 10)
        return float(np.sort(self.accuracy)[:tenth].mean())

    @property
    def sd(self) -> float:
        """Standard deviation over clients, who are all there are (no n - 1)."""
        return float(self.accuracy.std())


@dataclass(frozen=True, eq=False)
class Summary:
    """One run in numbers."""

    folder: Path
    method: str
    seed: int
    headline: Spread  # personal models in the round best on validation data
    last: Spread
    optimistic: Spread  # in the round best on test data
    server: Spread | None  # the server's copy in the headline round, where it was scored
    down: int  # bytes of all rounds and participants
    up: int
    rounds: int
    seconds: float | None  # None while unfinished


# What is said of a run; the same names everywhere.
NUMBERS: dict[str, Callable[[Summary], float | None]] = {
    "accuracy": lambda run: run.headline.mean,
    "weighted": lambda run: run.headline.weighted,
    "median": lambda run: run.headline.median,
    "worst_tenth": lambda run: run.headline.worst,
    "client_sd": lambda run: run.headline.sd,
    "headline_round": lambda run: run.headline.round,
    "last": lambda run: run.last.mean,
    "optimistic": lambda run: run.optimistic.mean,
    "global": lambda run: run.server.mean if run.server else None,
    "down_bytes": lambda run: run.down,
    "up_bytes": lambda run: run.up,
    "seconds": lambda run: run.seconds,
}


@dataclass(frozen=True, eq=False)
class Gain:
    """Percentage points over training alone, of each client with each seed."""

    seeds: Ints  # (pairs,)
    clients: Ints  # (pairs,)
    points: Floats  # (pairs,)

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
    gain: Gain | None  # over Local with the same seed; None for Local itself, and where there is none

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


# One run


def read(folder: Path | str) -> Run:
    folder = Path(folder)
    manifest = _manifest(folder / "manifest.json")
    try:
        experiment = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _not_a_run(folder / "experiment.toml", error) from error
    return Run(folder, experiment, manifest, **tables.load(folder))


def is_finished(folder: Path) -> bool:
    return "finished" in _manifest(folder / "manifest.json")


def grid(run: Run, stage: str, part: str) -> Grid:
    """Accuracies as arrays; stages and parts as in `tables.SCHEMAS`."""
    rows = run.rounds.filter((pc.field("stage") == stage) & (pc.field("part") == part))
    rounds, row = np.unique(rows["round"].to_numpy(), return_inverse=True)
    clients, column = np.unique(rows["client"].to_numpy(), return_inverse=True)
    metric = rows["metric"].to_numpy()

    def values(name: str) -> Floats:
        made, chosen = np.zeros((len(rounds), len(clients))), metric == name
        made[row[chosen], column[chosen]] = rows["value"].to_numpy()[chosen]
        return made

    accuracy, examples = values("accuracy"), values("examples")
    accuracy[examples == 0] = 0.0
    return Grid(f"{stage} {part} scores in {run.folder}", rounds, clients, accuracy, examples)


def summarise(run: Run) -> Summary:
    """The headline round is the first of those with the highest mean validation accuracy of personal models."""
    test, server = grid(run, "personal", "test"), grid(run, "global", "test")
    headline, optimistic = grid(run, "personal", "validation").best(), test.best()
    last = int(test.rounds[-1])
    down, up = (run.bytes.filter(pc.field("direction") == way)["bytes"].to_numpy().sum() for way in ("down", "up"))
    return Summary(
        folder=run.folder,
        method=run.method,
        seed=run.seed,
        headline=test.at(headline),
        last=test.at(last),
        optimistic=test.at(optimistic),
        server=server.at(headline) if headline in server.rounds else None,
        down=int(down),
        up=int(up),
        rounds=last,
        seconds=run.manifest.get("seconds"),
    )


def as_row(summary: Summary) -> dict[str, Any]:
    """Plain values, for tables and JSON."""
    numbers = {name: number(summary) for name, number in NUMBERS.items()}
    return {"method": summary.method, "seed": summary.seed, "rounds": summary.rounds} | numbers


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _not_a_run(path, error) from error
    if not (isinstance(manifest, dict) and {"method", "seed"} <= manifest.keys()):
        raise _not_a_run(path, "it names no method and seed")
    return manifest


def _not_a_run(path: Path, reason: object) -> InputError:
    return InputError(f"{path.parent} is not the folder of a run: {path.name} cannot be read ({reason}).")


# Several runs


def compare(runs: Sequence[Run]) -> Comparison:
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
    local = summaries.get(LOCAL, {})
    return Comparison(
        {name: Method(name, own, None if name == LOCAL else _gain(own, local)) for name, own in summaries.items()}
    )


def difference(one: Method, other: Method) -> float | None:
    """Points by which the first's headline accuracy is above the other's, on average over the seeds both have."""
    leads = [run.headline.mean - other.runs[seed].headline.mean for seed, run in one.runs.items() if seed in other.runs]
    return 100 * float(np.mean(leads)) if leads else None


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One dict of plain values for each method: means over seeds, and their spread as `…_sd`."""
    made = []
    for method in comparison.methods.values():
        row: dict[str, Any] = {"method": method.name, "seeds": sorted(method.runs)}
        for number in NUMBERS:
            estimate = method.over_seeds(number)
            row |= {number: estimate and estimate.mean, f"{number}_sd": estimate and estimate.sd}
        for number in GAINS:
            row[number] = GAINS[number](method.gain) if method.gain else None
        made.append(row)
    return made


def printable(comparison: Comparison) -> list[dict[str, str]]:
    """What a person wants to see of each method, within 80 columns.

    Accuracies in percent, the headline ± its spread over seeds; mean gain over Local in points; how many clients
    gain, lose and stay equal; megabytes both ways.
    """
    made = []
    for method in comparison.methods.values():
        gain = method.gain
        mean = {number: method.over_seeds(number) for number in NUMBERS}
        made.append(
            {
                "method": _title(method.name),
                "accuracy %": _percent(mean["accuracy"], spread=True),
                "worst 10%": _percent(mean["worst_tenth"]),
                "last": _percent(mean["last"]),
                "optimistic": _percent(mean["optimistic"]),
                "gain": f"{gain.mean:+.1f}" if gain else "",
                "+/-/=": f"{gain.gaining}/{gain.losing}/{gain.equal}" if gain else "",
                "MB": _megabytes(mean["down_bytes"], mean["up_bytes"]),
            }
        )
    return made


def verdict(comparison: Comparison, method: str = "fedlag") -> str:
    """One sentence: who gains over training alone, who loses, and how the method stands to fine-tuned FedAvg."""
    methods = comparison.methods
    if method not in methods:
        best = max(methods.values(), key=_accuracy)
        return (
            f"There is no run of {_title(method)} to judge; {_title(best.name)} has the highest mean accuracy of what "
            f"was run, {_accuracy(best):.1%}."
        )
    lead = difference(methods[method], methods[TUNED]) if TUNED in methods and method != TUNED else None
    return _standing(methods[method]) + ("" if lead is None else f"; {_against_tuned(lead)}") + "."


def _standing(method: Method) -> str:
    """How a method's clients fare against training alone; the larger camp is named first."""
    gain, title = method.gain, _title(method.name)
    if method.name == LOCAL:
        return f"{title} is training alone, which the others are measured by, and reaches {_accuracy(method):.1%}"
    if gain is None:
        return (
            f"{title} reaches {_accuracy(method):.1%} on average, but whether its clients gain over training alone is "
            f"unknown without a run of {_title(LOCAL)} with the same seed"
        )
    seeds = len(set(gain.seeds.tolist()))
    where = f", {seeds} seeds" if seeds > 1 else ""
    camps = [(gain.gaining, "gain over"), (gain.losing, "lose against")]
    (most, fare), (fewer, other) = camps if gain.gaining >= gain.losing else camps[::-1]
    return (
        f"{title}{where}: {most} of {len(gain.points)} clients {_verb(most, fare)} training alone "
        f"(median {gain.median:+.1f} points), {fewer} {_verb(fewer, other.split()[0])}, "
        f"{gain.equal} {_verb(gain.equal, 'stay')} equal"
    )


def _against_tuned(lead: float) -> str:
    tuned = _title(TUNED)
    if abs(lead) < 0.05:  # would be printed as 0.0
        return f"it is level with {tuned} on average"
    how = "beats" if lead > 0 else "falls short of"
    return f"it {how} {tuned} by {abs(lead):.1f} points on average"


def _verb(count: int, words: str) -> str:
    """In the singular for one: `gain over` becomes `gains over`."""
    verb, *rest = words.split()
    return " ".join([f"{verb}s" if count == 1 else verb, *rest])


def _title(method: str) -> str:
    return TITLES.get(method, method)


def _accuracy(method: Method) -> float:
    return float(np.mean([run.headline.mean for run in method.runs.values()]))


def _percent(estimate: Estimate | None, spread: bool = False) -> str:
    if estimate is None:
        return ""
    return f"{100 * estimate.mean:.1f}" + (f" ± {100 * estimate.sd:.1f}" if spread and estimate.sd is not None else "")


def _megabytes(*sent: Estimate | None) -> str:
    return f"{sum(estimate.mean for estimate in sent if estimate) / 1e6:,.1f}"


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


def _gain(own: dict[int, Summary], local: dict[int, Summary]) -> Gain | None:
    seeds, clients, points = [], [], []
    for seed, run in own.items():
        if seed in local:
            mine, alone = run.headline, local[seed].headline
            both, here, there = np.intersect1d(mine.clients, alone.clients, return_indices=True)
            seeds.append(np.full(len(both), seed))
            clients.append(both)
            points.append(100 * (mine.accuracy[here] - alone.accuracy[there]))
    if not seeds:
        return None
    return Gain(np.concatenate(seeds), np.concatenate(clients), np.concatenate(points))
