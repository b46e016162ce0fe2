"""What came out, as a Markdown page to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedlag import results
from fedlag.reproduce.cells import (
    EARLY,
    MEASURES,
    Cell,
    Cells,
    comparison,
    estimate,
    has_printed,
    plus_minus,
    shares,
)
from fedlag.reproduce.judge import Outcome, order, outcome
from fedlag.reproduce.paper import numbers
from fedlag.reproduce.study import Plan
from fedlag.results import LOCAL, Comparison


def page(plan: Plan, cells: Cells, command: str, figures: Mapping[str, str], told: Sequence[str]) -> str:
    """The whole page. figures: what each file shows. told: paragraphs of programs that belong to the experiment."""
    study = plan.study
    printed = f" Compared with {numbers(study.printed).title}." if study.printed else ""
    parts = [
        f"# {plan.name}: {study.title}",
        f"{study.item}. {study.asks}",
        f"**The paper.** {study.says}{printed}",
        f"**Here.** `{command}`, scale `{plan.scale}`. {plan.size.cut}{_changed(plan)}".strip(),
        *(f"![{shown}]({file})" for file, shown in figures.items()),
        *told,
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
    columns = {
        "": [results.title(row) for row in own],
        f"here {unit}": [plus_minus(cell.ours) for cell in own.values()],
    }
    if timed:
        columns["seconds here / FedAvg"] = [_ratio(cell, own) for cell in own.values()]
    else:
        columns["worst 10 %"] = [f"{cell.others['worst_tenth'].mean:.1f}" for cell in own.values()]
        columns["last"] = [f"{cell.others['last'].mean:.1f}" for cell in own.values()]
        if LOCAL in own:
            columns |= _gains(found)
    if has_printed(cells, column):
        if not timed:
            columns["as the paper measures"] = [plus_minus(cell.as_printed) for cell in own.values()]
        columns["paper"] = [plus_minus(cell.printed) if cell.printed else "" for cell in own.values()]
        columns["difference"] = ["" if c.difference is None else f"{c.difference:+.2f}" for c in own.values()]
    parts = [f"## {column}", _columns(columns)]
    if LOCAL in own and "fedlag" in own and not timed:
        parts.append(results.verdict(found))
    if pairs := order(cells, column).pairs:
        alike = order(cells, column).alike
        parts.append(f"Of {pairs} pairs of rows that the paper tells apart, {alike} stand in the same order here.")
    return parts


def _changed(plan: Plan) -> str:
    return f" But changed: `{' '.join(plan.overrides)}`." if plan.overrides else ""


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
    for when, part in (("first", slice(None, EARLY)), ("last", slice(-EARLY, None))):
        means = [np.nanmean(lines[:, part], axis=1) for _, lines in found]
        columns[f"{when} {EARLY} rounds %"] = [plus_minus(estimate(values)) for values in np.transpose(means)]
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


def _columns(columns: Mapping[str, Sequence[str]]) -> str:
    lines = [list(columns), ["---", *["---:"] * (len(columns) - 1)], *map(list, zip(*columns.values(), strict=True))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
