"""Where clients disagree, as plain rows: layer by round, and pair by pair."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedlag import experiment, pairs
from fedlag.experiment import flat
from fedlag.lag import LAG
from fedlag.report.evidence import Evidence, Row, spread
from fedlag.report.stability import Decision, decisions
from fedlag.results import Run, title

ROOM = 500_000  # characters that all cosines together may take in the page
CELLS = 6_000  # rounds of a layer in all maps together
ROUNDS = 150  # in one map
LEVELS = 127  # steps on either side of zero in which a cosine is told


@dataclass(frozen=True, eq=False)
class Disagreement:
    """What one run measured."""

    name: str
    xi: float | None  # pairs conflict below it; None where no LAG chose
    cells: list[Row]  # for each round and layer, layers in the model's order; None for what was not measured
    decisions: list[Decision]
    cosines: list[Row]  # for each recorded round and layer, in the order of `pairs.parquet`

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(cell["layer"] for cell in self.cells))


def gather(evidence: Evidence) -> list[Disagreement]:
    """Of every run that measured conflicts, those of the method in focus first."""
    return [
        _measured(run, rows)
        for method in evidence.methods
        for run in evidence.of(method)
        if (rows := _interesting(run.layers.to_pylist()))
    ]


def _interesting(rows: list[Row]) -> list[Row]:
    """The rows of layers in which something was measured; none if there is no such layer."""
    layers = {row["layer"] for row in rows if row["pairs"]}
    return [row for row in rows if row["layer"] in layers]


def _measured(run: Run, rows: list[Row]) -> Disagreement:
    rules = flat(experiment.experiment(run.experiment).algorithm.personal)
    rule = next((rule for rule in rules if isinstance(rule, LAG)), None)
    cosines = pairs.load(run.folder).to_pylist()
    taken = {decision.round: decision for decision in decisions(rule, rows, cosines)} if rule else {}
    cells = [
        {
            "round": row["round"],
            "layer": row["layer"],
            "conflicts": row["conflicts"],
            "pairs": row["pairs"],
            "share": round(100 * row["conflicts"] / row["pairs"], 2) if row["pairs"] else None,
            "cosine": round(row["mean_cosine"], 4) if row["pairs"] else None,
            "personal": bool(row["personal"]),
            "without": round(100 * taken[row["round"]].share(row["layer"]), 1) if row["round"] in taken else None,
        }
        for row in rows
    ]
    name = f"{title(run.method)}, seed {run.seed}"
    return Disagreement(name, rule.xi if rule else None, cells, list(taken.values()), cosines)


def cells(measured: list[Disagreement]) -> list[Row]:
    """The maps of all runs, with as many rounds of each as fit."""
    room = CELLS // max(sum(len(one.layers) for one in measured), 1)
    made = []
    for one in measured:
        kept = _kept(one.cells, min(ROUNDS, room))
        made += [{"run": one.name, **cell} for cell in one.cells if cell["round"] in kept]
    return made


def matrices(measured: list[Disagreement]) -> dict[str, list[Row]]:
    """Cosines of all pairs by run, as many rounds of each as fit, with what the map says of that cell.

    Similar clients stand side by side: they are ordered along the matrix's main axis. One byte a pair, in base64.
    """
    recorded = [one for one in measured if one.cosines]
    return {one.name: list(_fitting(one, ROOM // len(recorded))) for one in recorded}


def _fitting(one: Disagreement, room: int) -> Iterator[Row]:
    needed = sum(4 * -(-len(row["cosines"]) // 3) for row in one.cosines)
    rounds = len({row["round"] for row in one.cosines})
    kept = _kept(one.cosines, rounds * room // max(needed, 1))
    told = {(cell["round"], cell["layer"]): cell for cell in one.cells}
    for row in one.cosines:
        if row["round"] in kept:
            whole = pairs.matrix(row["cosines"], len(row["clients"]))
            order = np.argsort(np.linalg.eigh(whole)[1][:, -1])
            steps = np.round(whole[order][:, order][np.triu_indices(len(order), 1)] * LEVELS).astype(np.int8)
            yield told[row["round"], row["layer"]] | {
                "clients": [row["clients"][place] for place in order],
                "cosines": base64.b64encode(steps.tobytes()).decode(),
            }


def _kept(rows: list[Row], wanted: int) -> set[int]:
    """So many rounds, evenly spread, the last among them."""
    rounds = sorted({row["round"] for row in rows})
    return {rounds[place] for place in spread(len(rounds), wanted)}
