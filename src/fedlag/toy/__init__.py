"""FedLAG where everything can be seen: two dimensions, four users, three parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from fedlag import check
from fedlag.federation.sequential import one_thread
from fedlag.files import write_atomically, writing
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
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with one_thread():
        done = experiment(seed, rounds)
        facts = {"seed": seed, "rounds": rounds, "runs": numbers(done)}
        contents = {"toy.json": json.dumps(facts, indent=1).encode(), **figure.render(done)}
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return ToyResult(done, tuple(folder / name for name in contents), tuple(sentences(done)))
