"""Every combination of some settings, over seeds: what is missing is run, and all runs are gathered in one store."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedlag import check, gather
from fedlag.config import Table
from fedlag.errors import InputError
from fedlag.experiment import Comparison, Experiment, change, over_seeds, typed, variants
from fedlag.pool import Watch, execute_all, ignore

SHOWN = ("accuracy", "worst_tenth", "last")
SEEDS = "seeds"  # the one key that is no setting: how many seeds each combination is run with


def experiments(base: Mapping[str, Any], *words: str) -> list[Experiment]:
    """One experiment for each combination of `key=value,value,…`, each method of the `compare` table and each seed.

    Combinations that make no difference, such as LAG's k for training alone, stand once.
    """
    values = dict(map(_values, words))
    (seeds,) = values.pop(SEEDS, None) or [base.get("compare", {}).get("seeds", 1)]
    check.count(SEEDS, seeds, least=1)
    found: dict[str, Experiment] = {}
    for combination in itertools.product(*values.values()):
        settings = dict(base)
        for key, value in zip(values, combination, strict=True):
            settings = change(settings, key, value)
        found |= {one.hash: one for one in _over_seeds(settings, seeds)}
    return list(found.values())


def sweep(found: Sequence[Experiment], folder: Path, workers: int | None = None, watch: Watch = ignore) -> Path:
    """Run what isn't finished yet, a directory for each run under `folder`; returns the folder of the results store.

    The store also holds what earlier sweeps left in the same folder, and is up to date after an interruption.
    """
    try:
        execute_all([(one, folder / one.folder) for one in found], workers, watch)
    finally:
        results = gather.gather(folder)
    return results


def rows(results: Path, found: Sequence[Experiment], words: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each method and combination of the swept settings: accuracy in percent over seeds."""
    table = gather.read(results)
    runs = {row["run"]: row for row in table.to_pylist()}
    swept = [key for key, values in map(_values, words) if key != SEEDS and len(values) > 1]
    shown = [key for key in swept if key in table.column_names and key not in ("algorithm", "seed")]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in found:
        row = runs[one.folder]
        groups.setdefault(tuple(row[key] for key in ("method", *shown)), []).append(row)
    return [
        dict(zip(("method", *shown), key, strict=True))
        | {"seeds": len(runs)}
        | {f"{name.replace('_', ' ')} %": _percent([run[name] for run in runs]) for name in SHOWN}
        for key, runs in groups.items()
    ]


def _over_seeds(settings: Table, seeds: int) -> list[Experiment]:
    """The methods of the `compare` table, or the experiment's own algorithm with its own rule."""
    if "compare" in settings:
        return variants({**settings, "compare": {**settings["compare"], "seeds": seeds}})
    algorithm = settings.get("algorithm", "fedavg")
    own = {"name": algorithm} if isinstance(algorithm, str) else {"name": "fedavg", **algorithm}
    return over_seeds(settings, {**own, "personal": settings.get("personal", {})}, Comparison(seeds=seeds))


def _values(word: str) -> tuple[str, list[Any]]:
    """`personal.k=0,3,5` as the key and its values, TOML each, or text where they aren't."""
    key, equals, text = word.partition("=")
    try:
        values = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [typed(part.strip()) for part in text.split(",")]
    if not (equals and key.strip() and values):
        raise InputError(f"{word!r} sweeps nothing; write key=value,value,… for example personal.k=0,3,5.")
    if key.strip() == SEEDS and len(values) > 1:
        raise InputError(f"{word!r} is not allowed; seeds is how many there are, and `seed=0,7` says which.")
    return key.strip(), values


def _percent(values: Sequence[float]) -> str:
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{spread}"
