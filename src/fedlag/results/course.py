"""How a run went: accuracy against bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from fedlag.results.reading import Run
from fedlag.results.scores import Ints, grid


class Moment(NamedTuple):
    round: int
    down_bytes: int  # of all participants, up to this round
    up_bytes: int
    validation: float  # mean accuracy of every client's own model
    test: float


def course(run: Run) -> list[Moment]:
    """A moment for every round in which models were scored."""
    validation, test = grid(run, "personal", "validation"), grid(run, "personal", "test")
    down, up = (_sent(run, direction, test.rounds) for direction in ("down", "up"))
    columns = (test.rounds, down, up, validation.means(), test.means())
    return [Moment(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _sent(run: Run, direction: str, rounds: Ints) -> Ints:
    """Bytes up to each of the rounds, (rounds,)."""
    rows = run.bytes.filter(pc.field("direction") == direction)
    sent = np.zeros(int(rounds.max(initial=0)) + 1, np.int64)
    number, size = rows["round"].to_numpy(), rows["bytes"].to_numpy()
    np.add.at(sent, number[number < len(sent)], size[number < len(sent)])
    return np.asarray(sent.cumsum()[rounds])
