"""Writes what is generated of the method pages: their line of bytes, and the table docs/methods/README.md.

    python docs/method_pages.py

Bytes are counted as a run counts them, in rounds of a few clients on made-up images.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

from fedlag import catalogue
from fedlag.algorithm import Training
from fedlag.algorithms import REGISTRY
from fedlag.experiment import can_take_lag, flat
from fedlag.federation.sequential import Sequential
from fedlag.flow import Batch
from fedlag.lag import LAG
from fedlag.net import Model
from fedlag.nets import build
from fedlag.official import Official
from fedlag.personal import RandomLayers, WarmStart
from fedlag.round import begin
from fedlag.run import Sampling, rounds
from fedlag.tables import Tables

PAGES = Path(__file__).parent / "methods"
INDEX = PAGES / "README.md"
CLIENTS = 3
ROUNDS = range(2, 4)  # two, because FedAF's exchanges alternate; after the first, in which newcomers are sent more
HASTE = {"fedaf": {"image_steps": 1, "epochs": 1}}  # what only takes time

LINE = "**Bytes a round**"
SETTING = "FedAvg CNN for 28x28 images and ten classes, 2.33 MB; each participant, after the first round"

HEAD = """# Methods

Made by `python docs/method_pages.py`. MB (10⁶ bytes) a round and participant are for the FedAvg CNN (28x28 images, ten
classes: 2.33 MB) after the first round, as the byte ledger of a run counts them. Numbers of methods that choose layers
by what clients send hang on the choice: see their pages. "+LAG" says whether the method takes `personal.kind=lag`.

| method | what | MB down | MB up | +LAG |
|---|---|---|---|---|
"""


class Traffic(NamedTuple):
    down: float  # MB a round and participant
    up: float


def images(client: int, part: str) -> Batch:
    generator = torch.Generator().manual_seed(client)
    return Batch(torch.randn(20, 1, 28, 28, generator=generator), torch.arange(20) % 10)


def traffic(name: str) -> Traffic | None:
    """None where it hangs on what clients send, or on a draw."""
    algorithm = REGISTRY[name](**HASTE.get(name, {}))
    rules = flat(algorithm.personal)
    if any(isinstance(rule, LAG | Official | RandomLayers) for rule in rules):
        return None
    if any(isinstance(rule, WarmStart) for rule in rules):
        algorithm = replace(algorithm, personal=WarmStart(warmup=1))
    task, server = begin(algorithm, Model(build("cnn", (1, 28, 28), 10)), Training(batch=20), CLIENTS, seed=0)
    recorded = Tables()
    for done in islice(rounds(task, server, Sequential(task, images, 0), Sampling(), 0), ROUNDS.stop):
        recorded.add_bytes(done)
    counted = {"down": 0, "up": 0}
    for row in recorded.table("bytes").to_pylist():
        if row["round"] - 1 in ROUNDS:
            counted[row["direction"]] += row["bytes"]
    return Traffic(*(size / len(ROUNDS) / CLIENTS / 1e6 for size in counted.values()))


def page_of(name: str) -> Path:
    """Its own, or the one that tells how to run it."""
    own = PAGES / f"{name}.md"
    return (
        own
        if own.exists()
        else next(
            path
            for path in sorted(PAGES.glob("*.md"))
            if re.search(rf"algorithm={name}\b(?!-)", path.read_text("utf-8"))
        )
    )


def line(sent: dict[str, Traffic]) -> str:
    """What stands on a page of the methods named."""
    numbers = [f"{one.down:.2f} MB down, {one.up:.2f} MB up" for one in sent.values()]
    if len(set(numbers)) > 1:
        numbers = [f"`{name}` {number}" for name, number in zip(sent, numbers, strict=True)]
    return f"{LINE} ({SETTING}): {'; '.join(dict.fromkeys(numbers))}."


def with_line(page: str, made: str) -> str:
    """The page with its line of bytes, before the commands if it has none yet."""
    if LINE in page:
        return re.sub(rf"^{re.escape(LINE)}.*$", made, page, flags=re.MULTILINE)
    return page.replace("```", f"{made}\n\n```", 1)


def generated() -> dict[Path, str]:
    """The content of every page that is made or completed here."""
    sent = {name: traffic(name) for name in REGISTRY}
    made = {}
    for page in dict.fromkeys(map(page_of, REGISTRY)):
        known = {name: one for name, one in sent.items() if one is not None and page_of(name) == page}
        if known:
            made[page] = with_line(page.read_text("utf-8"), line(known))
    what = {row["method"]: row["what"] for row in catalogue.methods()}
    rows = [
        (
            f"[`{name}`]({page_of(name).name})",
            what[name],
            *((f"{one.down:.2f}", f"{one.up:.2f}") if one else ("see page",) * 2),
            "yes" if can_take_lag(name) else "no",
        )
        for name, one in sent.items()
    ]
    return {**made, INDEX: HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)}


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, "utf-8")
