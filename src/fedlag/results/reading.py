"""A run's folder, read."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedlag import tables
from fedlag.errors import InputError


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


def read(folder: Path | str) -> Run:
    folder = Path(folder)
    manifest = _manifest(folder / "manifest.json")
    try:
        experiment = tomllib.loads((folder / "experiment.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _not_a_run(folder / "experiment.toml", error) from error
    return Run(folder, experiment, manifest, **tables.load(folder))


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
