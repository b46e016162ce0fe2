"""FedLAG where everything can be seen: two dimensions, four users, three parameters."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from fedlag import check
from fedlag.errors import InputError
from fedlag.federation.sequential import one_thread
from fedlag.toy.experiment import Experiment, experiment
from fedlag.toy.report import numbers, sentences


class ToyResult(NamedTuple):
    experiment: Experiment
    files: tuple[Path, ...]
    summary: tuple[str, ...]  # sentences


def toy(folder: Path, seed: int = 0, rounds: int = 200) -> ToyResult:
    """Run everything; write the figures (SVG and PNG) and `toy.json` into the folder."""
    from fedlag.toy import figure  # before the work: it says so when matplotlib is missing

    check.count("seed", seed)
    check.count("rounds", rounds, least=1)
    _make(folder)
    with one_thread():
        done = experiment(seed, rounds)
        facts = {"seed": seed, "rounds": rounds, "runs": numbers(done)}
        contents = {"toy.json": json.dumps(facts, indent=1).encode(), **figure.render(done)}
    files = tuple(_write(folder / name, content) for name, content in contents.items())
    return ToyResult(done, files, tuple(sentences(done)))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made a folder ({error.strerror}); give another one.") from error


def _write(path: Path, content: bytes) -> Path:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)
    return path
