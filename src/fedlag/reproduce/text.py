"""What came out, as Markdown to read, LaTeX to print and CSV to count with."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedlag import results
from fedlag.reproduce.cells import EARLY, MEASURES, Cell, Cells, comparison, estimate, shares
from fedlag.reproduce.judge import Outcome, order, outcome
from fedlag.reproduce.paper import numbers
from fedlag.reproduce.study import Plan
from fedlag.results import LOCAL, Comparison, Estimate


def markdown(plan: Plan, cells: Cells, command: str, figures: Sequence[str], told: Sequence[str]) -> str:
    """The whole page. told: sentences of a program that belongs to the experiment."""
    study = plan.study
    printed = f" Compared with {numbers(study.printed).title}." if study.printed else ""
    parts = [
        f"# {plan.name}: {study.title}",
        f"{study.item}. {study.asks}",
        f"**The paper.** {study.says}{printed}",
        f"**Here.** `{command}`, scale `{plan.scale}`. {plan.size.cut}".strip(),
        *(f"![{_title(figure)}]({figure})" for figure in figures),
        *(sentence for sentence in told),
    ]
    for column in plan.columns:
        parts += _section(plan, cells, column)
    outcomes = [outcome(one, cells) for one in study.expect]
    seen = [_sentence(one) for one in outcomes if one.leads]
    if seen:
        parts += ["## What was expected", "\n".join(seen)]
    if cells:
        parts.append(_legend(plan))
    return "\n\n".join(parts) + "\n"


def latex(plan: Plan, cells: Cells) -> str:
    """A booktabs table: for each column what came out here, and what the paper prints."""
    head, below, body = [], [], []
    for column in plan.columns:
        printed = _has_printed(cells, column)
        head.append(rf"\multicolumn{{{1 + printed}}}{{c}}{{{_escape(column)}}}")
        below += ["here", "paper"][: 1 + printed]
    for row in plan.rows:
        texts = [_escape(_name(row))]
        for column in plan.columns:
            cell = cells[row, column]
            texts.append(_pm(cell.ours, r" \pm "))
            if _has_printed(cells, column):
                texts.append(_pm(cell.printed, r" \pm ") if cell.printed else "--")
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


def grid(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of plain values as a Markdown table; the first says the columns."""
    return _columns({str(name): [str(row[name]) for row in rows] for name in rows[0]})


def _section(plan: Plan, cells: Cells, column: str) -> list[str]:
    """A column as a table of its own."""
    own = {row: cells[row, column] for row in plan.rows}
    if plan.study.measure == "conflicts":
        return [f"## {column}", *(_by_layer(row, cell) for row, cell in own.items())]
    found = comparison(cells, column)
    unit = MEASURES[plan.study.measure].unit
    timed = plan.study.measure == "seconds"
    columns = {"": [_name(row) for row in own], f"here {unit}": [_pm(cell.ours) for cell in own.values()]}
    if timed:
        columns["seconds here / FedAvg"] = [_ratio(cell, own) for cell in own.values()]
    else:
        columns["worst 10 %"] = [f"{cell.others['worst_tenth'].mean:.1f}" for cell in own.values()]
        columns["last"] = [f"{cell.others['last'].mean:.1f}" for cell in own.values()]
        if LOCAL in own:
            columns |= _gains(found)
    if _has_printed(cells, column):
        if not timed:
            columns["as the paper measures"] = [_pm(cell.as_printed) for cell in own.values()]
        columns["paper"] = [_pm(cell.printed) if cell.printed else "" for cell in own.values()]
        columns["difference"] = ["" if c.difference is None else f"{c.difference:+.2f}" for c in own.values()]
    parts = [f"## {column}", _columns(columns)]
    if LOCAL in own and "fedlag" in own and not timed:
        parts.append(results.verdict(found))
    if pairs := order(cells, column).pairs:
        alike = order(cells, column).alike
        parts.append(f"Of {pairs} pairs of rows that the paper tells apart, {alike} stand in the same order here.")
    return parts


def _gains(found: Comparison) -> dict[str, list[str]]:
    gains = [method.gain for method in found.methods.values()]
    return {
        "gain over Local": [f"{gain.mean:+.1f}" if gain else "" for gain in gains],
        "gain/lose/stay": [f"{gain.gaining}/{gain.losing}/{gain.equal}" if gain else "" for gain in gains],
    }


def _by_layer(row: str, cell: Cell) -> str:
    """Conflicts early and late, layer by layer from the input on, over seeds."""
    found = [shares(run) for run in cell.runs]
    names = found[0][0]
    columns = {row: names}
    for title, part in (("first", slice(None, EARLY)), ("last", slice(-EARLY, None))):
        means = [np.nanmean(lines[:, part], axis=1) for _, lines in found]
        columns[f"{title} {EARLY} rounds %"] = [_pm(estimate(values)) for values in np.transpose(means)]
    return _columns(columns)


def _sentence(one: Outcome) -> str:
    expected = one.expectation
    what = f"is met in {one.met} of {len(one.leads)}"
    leads = "; ".join(f"{where}: {lead:+.1f}" for where, lead in one.leads.items())
    return f"* {expected.that}: {what} ({leads})."


def _legend(plan: Plan) -> str:
    if plan.study.measure == "conflicts":
        return "Shares of client pairs whose updates of a layer have a negative cosine, mean ± spread over seeds."
    if plan.study.measure == "seconds":
        return "The median round, as timed while it ran. Only ratios can be compared between machines."
    return (
        "Test accuracy in percent, mean over clients in the round chosen on validation data, ± spread over seeds; "
        "gains in points. *As the paper measures*: correct answers of all clients over all examples, in the round that "
        "is best on test data, which is optimistic; the difference to the paper is taken from it."
    )


def _ratio(cell: Cell, own: Mapping[str, Cell]) -> str:
    return f"{cell.ours.mean / own['fedavg'].ours.mean:.2f}" if "fedavg" in own else ""


def _has_printed(cells: Cells, column: str) -> bool:
    return any(cell.printed for (_, other), cell in cells.items() if other == column)


def _name(row: str) -> str:
    return results.TITLES.get(row, row)


def _title(figure: str) -> str:
    return figure.removesuffix(".svg")


def _pm(value: Estimate | tuple[float, float | None], sign: str = " ± ") -> str:
    mean, sd = value
    return f"{mean:.2f}" + ("" if sd is None else f"{sign}{sd:.2f}")


def _columns(columns: Mapping[str, Sequence[str]]) -> str:
    lines = [list(columns), ["---", *["---:"] * (len(columns) - 1)], *map(list, zip(*columns.values(), strict=True))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _csv(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(["" if value is None else value for value in line] for line in lines)
    return text.getvalue()


def _escape(text: str) -> str:
    special = {"α": r"$\alpha$", "ξ": r"$\xi$", "\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
    return re.sub(r"[&%$#_{}αξ\\~]", lambda found: special.get(found[0], "\\" + found[0]), text)
