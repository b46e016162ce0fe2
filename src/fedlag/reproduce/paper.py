"""The numbers the paper prints, as data files hold them."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import NamedTuple

from fedlag.errors import unknown

FOLDER = files("fedlag.reproduce") / "paper"


class Printed(NamedTuple):
    mean: float
    sd: float | None  # as printed; the paper does not say over how many repetitions


class Numbers(NamedTuple):
    """One table of the paper."""

    title: str
    cells: dict[tuple[str, str], Printed]  # (row, column)


def numbers(name: str) -> Numbers:
    known = sorted(file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml"))
    if name not in known:
        raise unknown("table of the paper", name, known)
    table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    cells = {
        (row, f"{column}, {block['at']}" if "at" in block else column): _number(text)
        for block in table["blocks"]
        for row, texts in block["rows"].items()
        for column, text in zip(block["columns"], texts, strict=True)
    }
    return Numbers(table["title"], cells)


def _number(text: str) -> Printed:
    mean, _, sd = text.partition(" ± ")
    return Printed(float(mean), float(sd) if sd else None)
