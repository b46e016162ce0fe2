"""What came out of runs: read, summarise, compare, say it in a sentence.

Accuracies are shares of 1, gains are percentage points.
"""

from fedlag.results.course import Moment, course
from fedlag.results.methods import (
    GAINS,
    LOCAL,
    TUNED,
    Comparison,
    Estimate,
    Gain,
    Method,
    compare,
    difference,
    over,
    rows,
)
from fedlag.results.reading import Run, read
from fedlag.results.scores import NUMBERS, Grid, Spread, Summary, as_row, grid, summarise
from fedlag.results.single import chosen, models, side_by_side
from fedlag.results.words import TITLES, printable, standings, title, verdict

__all__ = [
    "GAINS",
    "LOCAL",
    "NUMBERS",
    "TITLES",
    "TUNED",
    "Comparison",
    "Estimate",
    "Gain",
    "Grid",
    "Method",
    "Moment",
    "Run",
    "Spread",
    "Summary",
    "as_row",
    "chosen",
    "compare",
    "course",
    "difference",
    "grid",
    "models",
    "over",
    "printable",
    "read",
    "rows",
    "side_by_side",
    "standings",
    "summarise",
    "title",
    "verdict",
]
