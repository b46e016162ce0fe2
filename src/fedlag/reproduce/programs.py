"""Programs of fedlag that belong to experiments of the paper: the toy, and the theory beside what is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedlag import experiment
from fedlag.reproduce.page import grid

DEMO = Path(__file__).parents[1] / "demo.toml"


class Told(NamedTuple):
    paragraphs: list[str]
    figures: dict[str, str]  # what each file in the folder shows


def toy(folder: Path, rounds: int) -> Told:
    """`fedlag toy`."""
    from fedlag.toy import toy as program

    made = program(folder, rounds=rounds)
    return Told(list(made.summary), {file.name: file.stem for file in made.files if file.suffix == ".svg"})


def lemma(folder: Path, rounds: int) -> Told:
    """`fedlag lemma` on the toy, the digits and bowls with known constants."""
    from fedlag import lemma as program

    base = experiment.settings(DEMO)
    one = experiment.load({key: base[key] for key in ("data", "model", "training")})
    tables = program.rows(program.lemma(one, folder, rounds=rounds))
    return Told([f"{title}:\n\n{grid(rows)}" for title, rows in tables.items()], {})


PROGRAMS: dict[str, Callable[[Path, int], Told]] = {"toy": toy, "lemma": lemma}
