"""Figures of the experiments, which need the extra `plots`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from fedlag import results
from fedlag.reproduce.cells import MEASURES, Cell, Cells, accuracies, shares
from fedlag.reproduce.study import Plan
from fedlag.toy.figure import GREY, INK, STYLE  # first: it says so where matplotlib is missing

import matplotlib  # isort: skip
from matplotlib.axes import Axes  # isort: skip
from matplotlib.figure import Figure  # isort: skip
from matplotlib.ticker import MaxNLocator  # isort: skip

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#882255")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))  # one for each time the colours come round
ACROSS = 3  # panels side by side


class Picture(NamedTuple):
    shows: str
    svg: str


def render(plan: Plan, cells: Cells) -> dict[str, Picture]:
    """The study's figures by file name."""
    files = {}
    with matplotlib.rc_context(STYLE):
        for name in plan.study.figures:
            make, says = FIGURES[name]
            image = BytesIO()
            figure = make(plan, cells)
            figure.suptitle(f"{plan.name}: {plan.study.title}", x=0.01, horizontalalignment="left")
            figure.savefig(image, format="svg", metadata={"Date": None, "Title": plan.study.title, "Description": says})
            files[f"{name}.svg"] = Picture(says, image.getvalue().decode())
    return files


def _curves(plan: Plan, cells: Cells) -> Figure:
    figure, panels = _panels(list(plan.columns), height=2.6)
    style = _styles(plan)
    for column, axes in panels:
        for row in plan.rows:
            rounds, values = zip(*map(accuracies, cells[row, column].runs), strict=True)
            mean, low, high = np.mean(values, axis=0), np.min(values, axis=0), np.max(values, axis=0)
            axes.plot(rounds[0], mean, label=results.title(row), **style[row])
            if len(values) > 1:
                axes.fill_between(rounds[0], low, high, color=style[row]["color"], alpha=0.15, linewidth=0)
        axes.set_title(column)
        _count_rounds(axes)
    panels[0][1].set_ylabel("test accuracy, mean over clients, %")
    handles, labels = panels[0][1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _dots(plan: Plan, cells: Cells) -> Figure:
    figure, panels = _panels(list(plan.columns), height=0.8 + 0.19 * len(plan.rows))
    measure = MEASURES[plan.study.measure]
    places = np.arange(len(plan.rows))[::-1]
    for column, axes in panels:
        own = [cells[row, column] for row in plan.rows]
        axes.hlines(places, *_ends(own), color="#DDDDDD", linewidth=0.8, zorder=0)
        means, spreads = [cell.as_printed.mean for cell in own], [cell.as_printed.sd or 0 for cell in own]
        axes.errorbar(means, places, xerr=spreads, fmt="o", color=COLOURS[0], markersize=4, label="here")
        printed = [(cell.printed.mean, place) for cell, place in zip(own, places, strict=True) if cell.printed]
        if printed:
            axes.plot(*zip(*printed, strict=True), "D", markersize=4.5, color=INK, fillstyle="none", label="the paper")
        axes.set_yticks(places, [results.title(row) for row in plan.rows])
        axes.set_title(column)
        axes.set_xlabel(f"{measure.title}, {measure.unit}, as the paper measures")
        if plan.study.measure == "seconds":
            axes.set_xscale("log")
    handles, labels = max((axes.get_legend_handles_labels() for _, axes in panels), key=lambda found: len(found[0]))
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _conflicts(plan: Plan, cells: Cells) -> Figure:
    """The first seed of each cell."""
    titles = [f"{column}, {row}" for row in plan.rows for column in plan.columns]
    figure, panels = _panels(titles, height=2.2, across=min(len(plan.columns), ACROSS), sharey=False)
    for (row, column), (name, axes) in zip(((r, c) for r in plan.rows for c in plan.columns), panels, strict=True):
        layers, found = shares(cells[row, column].runs[0])
        extent = (0.5, found.shape[1] + 0.5, len(layers) - 0.5, -0.5)
        image = axes.imshow(found, aspect="auto", cmap="viridis", vmin=0, vmax=100, extent=extent, interpolation="none")
        axes.set_yticks(range(len(layers)), layers)
        axes.set_title(name)
        _count_rounds(axes)
    figure.colorbar(image, ax=[axes for _, axes in panels], label="pairs in conflict, %", shrink=0.6)
    return figure


FIGURES: dict[str, tuple[Callable[[Plan, Cells], Figure], str]] = {
    "curves": (_curves, "Test accuracy by round, a line for each row of the table; bands span the seeds."),
    "dots": (_dots, "For each row of the table a dot for what came out here and a diamond for what the paper prints."),
    "conflicts": (
        _conflicts,
        "Share of client pairs in conflict, layers downwards from the input, rounds to the right.",
    ),
}


def _panels(
    titles: Sequence[str], height: float, across: int = ACROSS, sharey: bool = True
) -> tuple[Figure, list[tuple[str, Axes]]]:
    across = min(across, len(titles))
    down = -(-len(titles) // across)
    figure = Figure(figsize=(2.0 + 2.4 * across, 0.9 + height * down))
    grid = figure.subplots(down, across, squeeze=False, sharey="row" if sharey else False)
    panels = list(grid.flat)
    for spare in panels[len(titles) :]:
        spare.remove()
    return figure, list(zip(titles, panels, strict=False))


def _count_rounds(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")


def _styles(plan: Plan) -> dict[str, dict[str, Any]]:
    """Colours in the order of the rows; FedLAG in ink."""
    looks = ((colour, dash) for dash in cycle(DASHES) for colour in COLOURS)
    made: dict[str, dict[str, Any]] = {}
    for row in plan.rows:
        if row == "fedlag":
            made[row] = {"color": INK, "linewidth": 2.0}
        elif row == results.LOCAL:
            made[row] = {"color": GREY}
        else:
            colour, dash = next(looks)
            made[row] = {"color": colour, "linestyle": dash}
    return made


def _ends(own: Sequence[Cell]) -> tuple[list[float], list[float]]:
    """From ours to the paper's, for a line between both."""
    return (
        [cell.as_printed.mean for cell in own],
        [cell.printed.mean if cell.printed else cell.as_printed.mean for cell in own],
    )
