"""What came out, as LaTeX to print and CSV to count with."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from fedlag import results
from fedlag.reproduce.cells import MEASURES, Cells, has_printed, plus_minus, shares
from fedlag.reproduce.study import Plan


def latex(plan: Plan, cells: Cells) -> str:
    """A booktabs table: for each column what came out here, and what the paper prints."""
    head, below, body = [], [], []
    for column in plan.columns:
        printed = has_printed(cells, column)
        head.append(rf"\multicolumn{{{1 + printed}}}{{c}}{{{_escape(column)}}}")
        below += ["here", "paper"][: 1 + printed]
    for row in plan.rows:
        texts = [_escape(results.title(row))]
        for column in plan.columns:
            cell = cells[row, column]
            texts.append(plus_minus(cell.ours, r" \pm "))
            if has_printed(cells, column):
                texts.append(plus_minus(cell.printed, r" \pm ") if cell.printed else "--")
        body.append(" & ".join([texts[0], *(f"${text}$" if text != "--" else text for text in texts[1:])]))
    lines = [
        rf"% {plan.name}, scale {plan.scale}: {MEASURES[plan.study.measure].title}, mean and spread over seeds.",
        rf"\begin{{tabular}}{{l{'r' * len(below)}}}",
        r"\toprule",
        " & ".join(["", *head]) + r" \\",
        " & ".join(["", *below]) + r" \\",
        r"\midrule",
        *(line + r" \\" for line in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def table(plan: Plan, cells: Cells) -> str:
    """CSV with a line for each cell."""
    head = ("experiment", "scale", "row", "column", "seeds", "ours", "ours_sd", "as_printed", "as_printed_sd")
    names = list(dict.fromkeys(name for cell in cells.values() for name in cell.others))
    lines = [
        (
            *(plan.name, plan.scale, row, column, len(cell.runs)),
            *(*cell.ours, *cell.as_printed, *(cell.printed or (None, None)), cell.difference),
            *(number for name in names for number in cell.others[name]),
            " ".join(run.manifest["hash"] for run in cell.runs),
        )
        for (row, column), cell in cells.items()
    ]
    more = [title for name in names for title in (name, f"{name}_sd")]
    return _csv((*head, "paper", "paper_sd", "difference", *more, "runs"), lines)


def layers(cells: Cells) -> str:
    """CSV of conflicts by layer and round, for experiments that measure them."""
    lines = [
        (row, column, run.seed, layer, round + 1, share)
        for (row, column), cell in cells.items()
        for run in cell.runs
        for layer, line in zip(*shares(run), strict=True)
        for round, share in enumerate(line.tolist())
    ]
    return _csv(("row", "column", "seed", "layer", "round", "conflicting_percent"), lines)


def _csv(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(["" if value is None else value for value in line] for line in lines)
    return text.getvalue()


def _escape(text: str) -> str:
    special = {"α": r"$\alpha$", "ξ": r"$\xi$", "\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
    return re.sub(r"[&%$#_{}αξ\\~]", lambda found: special.get(found[0], "\\" + found[0]), text)
