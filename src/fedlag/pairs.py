"""Which clients conflict with which: the cosine of every two participants' updates, layer by layer.

Kept beside the tables in `pairs.parquet`, for as many rounds, evenly spaced, as fit into a file of bounded size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedlag.files import write_atomically
from fedlag.run import Round

LIMIT = 2_000_000  # cosines in one file, 8 MB
FILE = "pairs.parquet"
SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("layer", pa.string()),
        ("clients", pa.list_(pa.int32())),  # those whose reply was used, c1, c2, c3 …
        ("cosines", pa.list_(pa.float32())),  # of c1 and c2, c1 and c3 …, c2 and c3 …
    ]
)


class Pairs:
    """The table of a run as it grows."""

    def __init__(self, keep: Sequence[int], known: pa.Table | None = None) -> None:
        self._keep = frozenset(keep)
        self._known = SCHEMA.empty_table() if known is None else known
        self._rows: list[tuple[Any, ...]] = []

    @classmethod
    def read(cls, folder: Path, before: int, keep: Sequence[int]) -> Pairs:
        """What is in a run's folder, without what was recorded after round `before`: those rounds come again."""
        return cls(keep, load(folder).filter(pc.field("round") <= before)) if before else cls(keep)

    def add(self, done: Round) -> None:
        """What a rule measured in a round, if it is one of those that are kept."""
        number = done.server.round
        if done.step is None or number not in self._keep:
            return
        clients = [client for client in done.letters if client not in done.dropped]
        above = np.triu_indices(len(clients), 1)
        for layer, conflict in done.step.conflicts.items():
            self._rows.append((number, layer, clients, conflict.cosines.cpu().numpy()[above].astype(np.float32)))

    def table(self) -> pa.Table:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
            self._known = pa.concat_tables([self._known, pa.table(arrays, schema=SCHEMA)])
            self._rows = []
        return self._known

    def write(self, folder: Path) -> None:
        write_atomically(folder / FILE, partial(pq.write_table, self.table()))


def load(folder: Path) -> pa.Table:
    """The table in a run's folder; an empty one where there is none."""
    path = folder / FILE
    return pq.read_table(path).cast(SCHEMA) if path.exists() else SCHEMA.empty_table()


def kept(rounds: int, layers: int, participants: int) -> list[int]:
    """The rounds, from 1, whose cosines together stay within `LIMIT`: evenly spaced, the last always among them."""
    size = layers * (participants * (participants - 1) // 2)
    fitting = LIMIT // max(size, 1)
    return list(range(rounds, 0, -max(1, -(-rounds // fitting))))[::-1] if fitting else []


def matrix(cosines: Sequence[float], clients: int) -> NDArray[np.float64]:
    """The full matrix, (clients, clients), of a row's cosines; a client agrees with itself."""
    made = np.eye(clients)
    above = np.triu_indices(clients, 1)
    made[above] = cosines
    made.T[above] = cosines
    return made
