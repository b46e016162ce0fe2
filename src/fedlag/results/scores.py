"""One run in numbers: how its models do, in which round, and what it sent.

The round that counts (the headline) is chosen on validation data; numbers from the round that happens to be best on
test data are called optimistic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedlag.errors import InputError
from fedlag.results.reading import Run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
    trials: int  # runs made to choose the settings
    validation: float  # mean accuracy of personal models on validation data, in the round where that is best
    headline: Spread  # the same models on test data
    last: Spread
    optimistic: Spread  # in the round best on test data
    server: Spread | None  # the server's copy in the headline round, where it was scored
    trained: Spread | None  # participants' models right after training in the headline round, before averaging
    last_trained: Spread | None  # personal models of the last round after local training
    last_server: Spread | None  # the server's copy in the last round
    last_server_trained: Spread | None  # the same after local training
    down: int  # bytes of all rounds and participants
    up: int
    rounds: int
    seconds: float | None  # None while unfinished
    division: str  # names the partition of the data; no other run's while unfinished


# What is said of a run; the same names everywhere.
NUMBERS: dict[str, Callable[[Summary], float | None]] = {
    "validation": lambda run: run.validation,
    "accuracy": lambda run: run.headline.mean,
    "weighted": lambda run: run.headline.weighted,
    "median": lambda run: run.headline.median,
    "worst_tenth": lambda run: run.headline.worst,
    "client_sd": lambda run: run.headline.sd,
    "headline_round": lambda run: run.headline.round,
    "last": lambda run: run.last.mean,
    "optimistic": lambda run: run.optimistic.mean,
    "global": lambda run: run.server.mean if run.server else None,
    "trained": lambda run: run.trained.mean if run.trained else None,
    "last_trained": lambda run: run.last_trained.mean if run.last_trained else None,
    "last_global": lambda run: run.last_server.mean if run.last_server else None,
    "last_global_trained": lambda run: run.last_server_trained.mean if run.last_server_trained else None,
    "down_bytes": lambda run: run.down,
    "up_bytes": lambda run: run.up,
    "seconds": lambda run: run.seconds,
}


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
    test, validation = grid(run, "personal", "test"), grid(run, "personal", "validation")
    headline, last = validation.best(), int(test.rounds[-1])
    down, up = (run.bytes.filter(pc.field("direction") == way)["bytes"].to_numpy().sum() for way in ("down", "up"))

    def other(stage: str, round: int) -> Spread | None:
        scores = grid(run, stage, "test")
        return scores.at(round) if round in scores.rounds else None

    return Summary(
        folder=run.folder,
        method=run.method,
        seed=run.seed,
        trials=int(run.experiment.get("trials", 0)),
        validation=validation.at(headline).mean,
        headline=test.at(headline),
        last=test.at(last),
        optimistic=test.at(test.best()),
        server=other("global", headline),
        trained=other("trained", headline),
        last_trained=other("personal-trained", last),
        last_server=other("global", last),
        last_server_trained=other("global-trained", last),
        down=int(down),
        up=int(up),
        rounds=last,
        seconds=run.manifest.get("seconds"),
        division=run.manifest.get("partition", str(run.folder)),
    )


def as_row(summary: Summary) -> dict[str, Any]:
    """Plain values, for tables and JSON."""
    numbers = {name: number(summary) for name, number in NUMBERS.items()}
    own = {"method": summary.method, "seed": summary.seed, "rounds": summary.rounds, "trials": summary.trials}
    return own | numbers
