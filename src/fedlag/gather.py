"""All runs of a folder as one store of Parquet files with the settings as columns, for DuckDB, polars or pyarrow.

`runs.parquet` has one row for each finished run: settings, then the numbers of `results.NUMBERS`. The folders `rounds`,
`layers` and `bytes` hold one file for each run: settings, then the columns of that table. All files of a folder have
the same columns; a setting that a run doesn't have is null.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedlag import results
from fedlag.config import flat
from fedlag.errors import InputError
from fedlag.files import write_atomically, writing

NAME = "results"
TABLES = ("rounds", "layers", "bytes")
TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}

Settings = dict[str, Any]


def gather(folder: Path) -> Path:
    """Bring the store of the runs right under `folder` up to date and return its place, `folder/results`.

    Only files of new runs are written, unless those have settings the others have not.
    """
    places = [path.parent for path in sorted(folder.glob("*/manifest.json"))]
    runs = [results.read(place) for place in places if _finished(place)]
    own = {run.folder.name: {"run": run.folder.name, "method": run.method} | settings(run) for run in runs}
    schema = _schema(own.values())
    store = folder / NAME
    for table in TABLES:
        _make_room(store / table, own.keys())
        for run in runs:
            _write_once(store / table / f"{run.folder.name}.parquet", getattr(run, table), own, schema)
    numbers = pa.schema([(name, pa.float64()) for name in results.NUMBERS])
    rows = [_typed(own[run.folder.name], schema) | results.as_row(results.summarise(run)) for run in runs]
    whole = pa.Table.from_pylist(rows, pa.unify_schemas([schema, numbers]))
    write_atomically(store / "runs.parquet", partial(pq.write_table, whole))
    return store


def _finished(place: Path) -> bool:
    return "finished" in json.loads((place / "manifest.json").read_text(encoding="utf-8"))


def read(store: Path) -> pa.Table:
    """One row for each run."""
    try:
        return pq.read_table(store / "runs.parquet")
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{store} is not a results store: runs.parquet cannot be read; sweep again.") from error


def settings(run: results.Run) -> Settings:
    """A run's settings by dotted key; what is listed becomes JSON text.

    The rules of what stays personal are named in `personal.kind`; their own settings stand together, as `personal.k`.
    """
    rules = run.experiment.get("personal", [])
    personal = {key: value for rule in rules for key, value in rule.items()}
    own = {key: value for key, value in run.experiment.items() if key != "log"}
    return flat(own | {"personal": personal | {"kind": " | ".join(rule["kind"] for rule in rules)}})


def _schema(settings: Collection[Settings]) -> pa.Schema:
    """Every setting any run has, of a type that holds all its values."""
    kinds: dict[str, set[type]] = {}
    for one in settings:
        for key, value in one.items():
            kinds.setdefault(key, set()).add(type(value))
    return pa.schema([(key, _column(found)) for key, found in kinds.items()])


def _column(kinds: set[type]) -> pa.DataType:
    if kinds == {int, float}:
        return pa.float64()
    return TYPES.get(next(iter(kinds)), pa.string()) if len(kinds) == 1 else pa.string()


def _typed(settings: Settings, schema: pa.Schema) -> Settings:
    """A value, or None, for every column."""
    text = {field.name for field in schema if field.type == pa.string()}
    return {
        name: str(settings[name]) if name in text & settings.keys() else settings.get(name) for name in schema.names
    }


def _make_room(folder: Path, runs: Collection[str]) -> None:
    """A folder without files of runs that are gone."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.parquet"):
            if path.stem not in runs:
                path.unlink()


def _write_once(path: Path, table: pa.Table, settings: Mapping[str, Settings], schema: pa.Schema) -> None:
    whole = pa.unify_schemas([schema, table.schema])
    if path.exists() and pq.read_schema(path).equals(whole):
        return
    values = _typed(settings[path.stem], schema)
    constant = [pa.repeat(pa.scalar(values[field.name], field.type), len(table)) for field in schema]
    write_atomically(path, partial(pq.write_table, pa.table([*constant, *table.columns], schema=whole)))
