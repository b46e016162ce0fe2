"""Which labels every client holds, kept in `labels.parquet` of a run: what a reader must know to judge the rest."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedlag.data.federated import Federated, Part
from fedlag.files import write_atomically

FILE = "labels.parquet"
SCHEMA = pa.schema(
    [
        ("client", pa.int32()),
        ("part", pa.string()),  # "train", "validation", "test"
        ("label", pa.int32()),
        ("examples", pa.int64()),  # never zero: what a client doesn't hold has no row
    ]
)


def write(folder: Path, federated: Federated) -> None:
    """Once for a run; the partition never changes."""
    if (folder / FILE).exists():
        return
    labels = federated.dataset.y.numpy()
    rows = [
        (client, part, label, count)
        for client, parts in enumerate(federated.parts)
        for part in get_args(Part)
        for label, count in enumerate(np.bincount(labels[getattr(parts, part)]).tolist())
        if count
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    write_atomically(folder / FILE, partial(pq.write_table, pa.table(arrays, schema=SCHEMA)))


def load(folder: Path) -> pa.Table:
    """The table in a run's folder; an empty one where there is none."""
    path = folder / FILE
    return pq.read_table(path).cast(SCHEMA) if path.exists() else SCHEMA.empty_table()
