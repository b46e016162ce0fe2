"""Does what came out stand in the paper's order, and as the paper leads one to expect?"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

from fedlag.reproduce.cells import Cells
from fedlag.reproduce.study import Expectation


class Order(NamedTuple):
    alike: int
    pairs: int  # pairs of rows to which the paper gives different numbers


class Outcome(NamedTuple):
    """An expectation and, for each place where it could be looked at, by how much the first is above the second."""

    expectation: Expectation
    leads: dict[str, float]

    @property
    def met(self) -> int:
        within = self.expectation.within
        return sum(lead > 0 if within is None else abs(lead) <= within for lead in self.leads.values())


def order(cells: Cells, column: str) -> Order:
    """Of all pairs of rows in a column, how many stand here as they stand in the paper, measured alike."""
    known = [cell for (_, other), cell in cells.items() if other == column and cell.printed]
    signs = [
        (one.printed.mean - other.printed.mean) * (one.as_printed.mean - other.as_printed.mean)
        for one, other in combinations(known, 2)
        if one.printed and other.printed and one.printed.mean != other.printed.mean
    ]
    return Order(sum(sign > 0 for sign in signs), len(signs))


def outcome(expectation: Expectation, cells: Cells) -> Outcome:
    """Looked at wherever both partners were run; by what fedlag reports, not by the paper's measure."""
    leads = {}
    for high, low in zip(expectation.higher, expectation.lower, strict=True):
        for row, column in cells:
            if expectation.of == "rows" and row == high and (low, column) in cells:
                leads[f"{high} over {low}, {column}"] = _lead(cells, (high, column), (low, column))
            if expectation.of == "columns" and column == high and (row, low) in cells:
                leads[f"{high} over {low}, {row}"] = _lead(cells, (row, high), (row, low))
    return Outcome(expectation, leads)


def _lead(cells: Cells, high: tuple[str, str], low: tuple[str, str]) -> float:
    return cells[high].ours.mean - cells[low].ours.mean
