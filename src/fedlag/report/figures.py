"""The charts, as Vega-Lite.

The page's style sheet says what a colour is (`var(--…)`), and its script puts the rows in under a table's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import altair as alt

from fedlag.report.evidence import Row

PLAIN = 8  # methods with a colour of their own
DASHES = {"Local": [7, 3], "FedAvg": [2, 3], "FedAvg+FT": [8, 3, 2, 3]}  # what others have to beat, told without colour
ROW = 26  # pixels of a layer

CONFIG = {
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {
        "domain": False,
        "ticks": False,
        "gridColor": "var(--line)",
        "labelColor": "var(--muted)",
        "labelFontSize": 12,
        "labelPadding": 6,
        "titleColor": "var(--muted)",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
    },
    "axisBand": {"grid": False},
    "legend": {
        "labelColor": "var(--muted)",
        "labelFontSize": 12,
        "titleColor": "var(--muted)",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "gradientThickness": 10,
        "gradientLength": 140,
        "orient": "top",
        "titleOrient": "left",
        "titlePadding": 10,
        "titleLimit": 400,
        "offset": 8,
    },
    "mark": {"aria": False},
}


def curves(rows: list[Row], heads: list[Row], methods: Sequence[str]) -> Row:
    """Accuracy by round, with a band over seeds and a dot for every run's headline round."""
    shown = alt.param(name="shown", value=list(methods[:PLAIN]))
    base = _data("curves").transform_filter(_SHOWN)
    x = alt.X("round:Q", title="round", axis=alt.Axis(grid=False, tickMinStep=1), scale=alt.Scale(nice=False))
    y, color = _accuracy(rows + heads), _color(methods)
    band = base.mark_area(opacity=0.13, clip=True).encode(x, _accuracy(rows + heads, "low"), alt.Y2("high:Q"), color)
    line = base.mark_line(clip=True).encode(x, y, color, _dash(methods), strokeWidth=_width(methods))
    told = base.mark_point(opacity=0, size=160, clip=True).encode(x, y, tooltip=_CURVE)
    dots = (
        _data("heads")
        .transform_filter(_SHOWN)
        .mark_point(filled=True, size=50, opacity=1, stroke="var(--paper)", strokeWidth=1.5)
        .encode(x, y, color, tooltip=["method:N", "seed:O", _tip("round"), _tip("mean", "accuracy, %", ".1f")])
    )
    return _finish(
        alt.layer(band, line, told, dots).add_params(shown).properties(height=340),
        "Lines of test accuracy by round, one for each method.",
    )


def costs(rows: list[Row], methods: Sequence[str]) -> Row:
    """Accuracy against the bytes that it took to get there."""
    shown = alt.param(name="shown", value=list(methods[:PLAIN]))
    base = _data("curves").transform_filter(_SHOWN).transform_filter("datum.megabytes > 0")
    x = alt.X(
        "megabytes:Q",
        title="megabytes sent so far (logarithmic)",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(grid=False, format="~g", labelOverlap=True, tickCount=6),
    )
    y = _accuracy(rows)
    line = base.mark_line(clip=True).encode(
        x, y, _color(methods), _dash(methods), alt.Order("round:Q"), strokeWidth=_width(methods)
    )
    told = base.mark_point(opacity=0, size=160, clip=True).encode(
        x, y, tooltip=[*_CURVE, _tip("megabytes", "MB", ".1f")]
    )
    return _finish(
        alt.layer(line, told).add_params(shown).properties(height=300),
        "Lines of test accuracy against megabytes sent, one for each method.",
    )


def gains(methods: Sequence[str]) -> Row:
    """A bar for every client, sorted; harmed clients also carry a triangle."""
    method = alt.param(name="method", value=methods[0])
    base = _data("gains").transform_filter("datum.method == method")
    x = alt.X("rank:O", axis=None, scale=alt.Scale(paddingInner=0.25))
    y = alt.Y("points:Q", title="points over training alone", axis=_SIGNED)
    tips = [
        "client:O",
        "seed:O",
        _tip("points", "points gained", "+.1f"),
        _tip("accuracy", "accuracy, %", ".1f"),
        _tip("alone", "training alone, %", ".1f"),
        _tip("examples", "test examples", ".0f"),
    ]
    color = (
        alt.when("datum.points < 0")
        .then(alt.value("var(--harm)"))
        .when("datum.points > 0")
        .then(alt.value("var(--gain)"))
        .otherwise(alt.value("var(--muted)"))
    )
    bars = base.mark_bar(minBandSize=1).encode(x, y, color=color, tooltip=tips)
    equal = (
        base.transform_filter("datum.points == 0")
        .mark_tick(orient="horizontal", thickness=2, color="var(--muted)")
        .encode(x, y, tooltip=tips)
    )
    harmed = (
        base.transform_filter("datum.points < 0")
        .mark_point(shape="triangle-down", filled=True, size=36, opacity=1, yOffset=8, color="var(--harm)")
        .encode(x, y, tooltip=tips)
    )
    return _finish(
        alt.layer(bars, equal, harmed).add_params(method).properties(height=280),
        "Bars of the points every client gains over training alone, sorted; harmed clients carry a triangle.",
    )


def holdings(partitions: dict[str, list[Row]]) -> Row:
    """How many examples of each label every client holds."""
    partition = alt.param(name="partition", value=next(iter(partitions)))
    labels = len({row["label"] for rows in partitions.values() for row in rows})
    chart = (
        _data("holdings")
        .transform_filter("datum.partition == partition")
        .mark_rect(stroke="var(--paper)", strokeWidth=1, cornerRadius=2)
        .encode(
            alt.X("client:O", title="client", axis=alt.Axis(labelAngle=0, labelOverlap=True, labelSeparation=3)),
            alt.Y("label:O", title="label", sort="descending", axis=alt.Axis(labelOverlap=True)),
            alt.Color("examples:Q", title="examples", scale=_scale("var(--low)", "var(--high)", nice=False)),
            tooltip=["client:O", "label:O", "examples:Q"],
        )
    )
    return _finish(
        chart.add_params(partition).properties(height=max(160, min(520, 24 * labels))),
        "A map of clients by labels; the darker a cell, the more examples.",
    )


def conflicts(cells: list[Row]) -> Row:
    """Layer by round: the share of pairs that conflict; a dot where the layer is personal from then on."""
    base = _data("cells").transform_filter("datum.run == run")
    color = alt.Color(
        "share:Q",
        title="pairs in conflict, %",
        scale=_scale("var(--calm)", "var(--clash)", domainMin=0, nice=False),
    )
    tips = [
        *_CELL,
        _tip("conflicts", "pairs in conflict", ".0f"),
        _tip("pairs", "of", ".0f"),
        _tip("cosine", "mean cosine", ".3f"),
        alt.Tooltip("personal:N", title="personal"),
    ]
    shares = base.mark_rect(stroke="var(--paper)", strokeWidth=0.5, cursor="pointer").encode(
        _ROUND, _LAYER, color, tooltip=tips
    )
    personal = (
        base.transform_filter("datum.personal")
        .mark_point(filled=True, size=22, opacity=1, color="var(--dot)", stroke="var(--paper)", strokeWidth=0.7)
        .encode(_ROUND, _LAYER, tooltip=tips)
    )
    chosen = (
        base.transform_filter("datum.round == round && datum.layer == layer")
        .mark_rect(filled=False, stroke="var(--ink)", strokeWidth=2.5)
        .encode(_ROUND, _LAYER)
    )
    params = [alt.param(name="round", value=0), alt.param(name="layer", value="")]
    return _finish(
        alt.layer(shares, personal, chosen).add_params(_run(cells), *params).properties(height=_height(cells)),
        "A map of layers by rounds; the stronger a cell's colour, the more pairs of clients conflict there.",
    )


def choices(cells: list[Row]) -> Row:
    """Layer by round: whether it is personal, and for how many clients left out it would be."""
    base = _data("cells").transform_filter("datum.run == run")  # all rounds, to stand below the map of conflicts
    color = alt.Color(
        "without:Q",
        title="still chosen, %",
        scale=_scale("var(--paper)", "var(--high)", domain=[0, 100]),
    )
    tips = [*_CELL, alt.Tooltip("personal:N", title="personal"), _tip("without", "chosen without one, %", ".0f")]
    shares = base.mark_rect(stroke="var(--line)", strokeWidth=0.5).encode(_ROUND, _LAYER, color, tooltip=tips)
    personal = (
        base.transform_filter("datum.personal && datum.without != null")
        .mark_point(filled=True, size=22, opacity=1, color="var(--dot)", stroke="var(--paper)", strokeWidth=0.7)
        .encode(_ROUND, _LAYER, tooltip=tips)
    )
    return _finish(
        alt.layer(shares, personal).add_params(_run(cells)).properties(height=_height(cells)),
        "A map of layers by rounds; the stronger a cell's colour, the more clients can be left out without changing "
        "that the layer is personal.",
    )


def matrix() -> Row:
    """Client by client: the cosines of one layer in one round, which the page's script puts in."""
    chart = (
        _data("cosines")
        .mark_rect()
        .encode(
            alt.X(
                "one:O",
                title="client",
                sort=_order("column"),
                axis=alt.Axis(labelAngle=0, labelOverlap=True, labelSeparation=3),
            ),
            alt.Y("other:O", title="client", sort=_order("row"), axis=alt.Axis(labelOverlap=True, labelSeparation=2)),
            alt.Color(
                "cosine:Q",
                title="cosine",
                scale=alt.Scale(
                    type="pow",
                    exponent=0.6,  # so that the sign of a small cosine can be seen
                    domain=[-1, 0, 1],
                    range=["var(--against)", "var(--neutral)", "var(--along)"],
                    interpolate="rgb",
                ),
                legend=alt.Legend(values=[-1, -0.3, 0, 0.3, 1], format=".1~f"),
            ),
            tooltip=[
                alt.Tooltip("one:O", title="client"),
                alt.Tooltip("other:O", title="and client"),
                _tip("cosine", "cosine", "+.2f"),
            ],
        )
    )
    return _finish(chart, "A map of clients by clients; its colour is the cosine of their updates.")


_SIGNED = alt.Axis(
    format="+d",
    tickCount=6,
    tickMinStep=1,
    labelExpr="datum.value ? datum.label : '0'",
    gridColor={"condition": {"test": "datum.value == 0", "value": "var(--muted)"}, "value": "var(--line)"},
)
_SHOWN = "indexof(shown, datum.method) >= 0"
_ROUND = alt.X("round:O", title="round", axis=alt.Axis(labelAngle=0, labelOverlap=True, labelSeparation=3))
_LAYER = alt.Y("layer:N", title=None, sort=None)


def _tip(field: str, title: str | None = None, format: str = "") -> alt.Tooltip:
    return alt.Tooltip(f"{field}:Q", title=title or field, format=format)


_CELL = [alt.Tooltip("layer:N", title="layer"), _tip("round")]
_CURVE = [
    alt.Tooltip("method:N", title="method"),
    _tip("round"),
    _tip("mean", "mean, %", ".1f"),
    _tip("low", "lowest seed, %", ".1f"),
    _tip("high", "highest seed, %", ".1f"),
]


def _run(cells: list[Row]) -> alt.Parameter:
    return alt.param(name="run", value=cells[0]["run"])


def _height(cells: list[Row]) -> int:
    """Room for the layers of the run that has most."""
    pairs = {(cell["run"], cell["layer"]) for cell in cells}
    return ROW * max(Counter(run for run, _ in pairs).values())


def _order(field: str) -> alt.EncodingSortField:
    return alt.EncodingSortField(field, op="min")


def _accuracy(rows: list[Row], field: str = "mean") -> alt.Y:
    """The axis, from well below where the methods end: how they set out matters less than how they differ then."""
    last = {(row["method"], row.get("seed")): row["mean"] for row in rows}
    low = max(0, 10 * int((min(last.values()) - 15) // 10))
    high = min(100, 10 * int(max(row.get("high", 0.0) for row in rows) // 10) + 10)
    return alt.Y(f"{field}:Q", title="test accuracy, %", scale=alt.Scale(domain=[low, high]))


def _width(methods: Sequence[str]) -> Any:
    return alt.when(alt.datum.method == methods[0]).then(alt.value(3)).otherwise(alt.value(1.75))


def _color(methods: Sequence[str]) -> alt.Color:
    colors = [f"var(--c{place})" for place in range(1, PLAIN + 1)] + ["var(--faint)"] * len(methods)
    scale = alt.Scale(domain=list(methods), range=colors[: len(methods)])
    return alt.Color("method:N", scale=scale, legend=None)


def _dash(methods: Sequence[str]) -> alt.StrokeDash:
    scale = alt.Scale(domain=list(methods), range=[DASHES.get(method, [1, 0]) for method in methods])
    return alt.StrokeDash("method:N", scale=scale, legend=None)


def _scale(low: str, high: str, **settings: Any) -> alt.Scale:
    return alt.Scale(range=[low, high], interpolate="rgb", **settings)


def _data(name: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name))


def _finish(chart: Any, description: str) -> Row:
    made = chart.properties(width="container", description=description).to_dict()
    made.pop("$schema")  # an address on the network, though nobody would ask for it
    return {**made, "config": CONFIG}
