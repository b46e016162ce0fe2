"""The page: one HTML file that holds its style, its script, the charting library and the evidence."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import altair
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

from fedlag import results
from fedlag.report import disagreement, evidence, figures, settings
from fedlag.report.evidence import Evidence, Row

COLUMNS = {
    "accuracy %": "Mean over clients of each client's own model on its own test examples, in the round chosen on "
    "validation data; ± the standard deviation over seeds.",
    "weighted": "The same, every test example counting alike instead of every client.",
    "median": "The client in the middle.",
    "worst 10%": "Mean of the worst tenth of the clients in that round.",
    "last": "The mean after the last round.",
    "optimistic": "The mean in the round that happens to be best on test data: nobody can choose it beforehand.",
    "gain": "Percentage points over training alone, mean over clients and seeds; ± half the 95 % interval over seeds.",
    "+/-/=": "How many clients gain over training alone, lose against it, and stay equal, all seeds together.",
    "Local": "Against training alone: beats, loses, or open where the corrected tests show no difference.",
    "FedAvg+FT": "The same against FedAvg whose clients train once more before they are scored.",
    "MB": "Megabytes of tensors sent in training, both ways, all clients together.",
    "trials": "Runs that were made to choose the settings.",
}


def render(found: Evidence) -> str:
    """The whole page."""
    curves, heads = evidence.curves(found), evidence.headlines(found)
    methods = [results.title(method) for method in found.methods]
    gains, holdings = evidence.gains(found), evidence.holdings(found)
    measured = disagreement.gather(found)
    cells, matrices = disagreement.cells(measured), disagreement.matrices(measured)
    specs = {
        "curves": figures.curves(curves, heads, methods),
        "costs": figures.costs(curves, methods),
        **({"gains": figures.gains(list(gains))} if gains else {}),
        **({"holdings": figures.holdings(holdings)} if holdings else {}),
        **({"conflicts": figures.conflicts(cells)} if cells else {}),
        **({"choices": figures.choices(cells)} if any(cell["without"] is not None for cell in cells) else {}),
        **({"matrix": figures.matrix()} if matrices else {}),
    }
    tables = {
        "curves": curves[::-1],  # the first method is drawn last, above the others
        "heads": heads[::-1],
        "gains": [{"method": name, "rank": rank, **row} for name in gains for rank, row in enumerate(gains[name], 1)],
        "holdings": [{"partition": name, **row} for name, rows in holdings.items() for row in rows],
        "cells": cells,
    }
    data = {
        "specs": specs,
        "tables": {name: _columns(rows) for name, rows in tables.items() if rows},
        "matrices": matrices,
        "xi": {one.name: one.xi for one in measured},
    }
    leaders = found.comparison.leaders
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            focus=results.title(found.focus),
            verdict=results.verdict(found.comparison, found.focus),
            tables=[results.printable(found.comparison), results.standings(found.comparison)],
            leader=results.title(leaders[0]) if len(leaders) == 1 else None,
            columns=COLUMNS,
            methods=methods,
            plain=figures.PLAIN,
            dashes=figures.DASHES,
            curves=curves,
            heads=heads,
            gains=gains,
            standing=found.comparison.methods[found.focus].gain if found.focus in found.comparison.methods else None,
            holdings=holdings,
            measured=measured,
            traffic=_by(evidence.traffic(found), "method"),
            dropped=evidence.dropped(found),
            common=settings.common(found),
            own=settings.own(found),
            runs=settings.runs(found),
            versions=settings.versions(found),
            has=specs.keys(),
            seeds=sorted({run.seed for run in found.runs}),
            style=_file("page.css"),
            script=_file("page.js"),
            library=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed", _grammar()),
            data=_json(data),
        )
    )


def _grammar() -> str:
    """The version of Vega-Lite that the charts are written in, `6.4` for `v6.4.1`."""
    return str(altair.SCHEMA_VERSION).removeprefix("v").rpartition(".")[0]


def _by(rows: list[Row], key: str) -> dict[str, list[Row]]:
    made: dict[str, list[Row]] = {}
    for row in rows:
        made.setdefault(row[key], []).append(row)
    return made


def _columns(rows: list[Row]) -> dict[str, list[Any]]:
    """A table by column, which names every column once."""
    return {column: [row[column] for row in rows] for column in rows[0]}


def _json(value: Any) -> str:
    """As it may stand within a script element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _file(name: str) -> str:
    return (files("fedlag.report") / name).read_text(encoding="utf-8")


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fedlag.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = lambda value, digits=1: f"{value:,.{digits}f}".replace("-", "−")
    return made
