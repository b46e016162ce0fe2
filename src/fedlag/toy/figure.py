"""Figures of the toy, which need the extra `plots`."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from fedlag.errors import InputError
from fedlag.flow import Batch
from fedlag.toy.experiment import Experiment
from fedlag.toy.training import SCALARS, Run

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
except ModuleNotFoundError as error:
    raise InputError('The figures need matplotlib, which is not installed; run: pip install "fedlag[plots]"') from error

# The colours of Okabe and Ito, which differ for every kind of colour vision: blue left of x = 0, red right of it.
USERS = ("#0072B2", "#56B4E9", "#E69F00", "#D55E00")
CLASSES = ("#CC79A7", "#009E73")
BEST = "#F0E442"
INK, GREY, PALE = "#222222", "#888888", "#DDDDDD"
AGREEMENT = "PuOr"  # orange for conflict, violet for agreement
CONFLICT = "#FBE9D3"

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 7,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 7,
    "text.color": INK,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "figure.titlesize": 10,
    "figure.titleweight": "bold",
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "svg.hashsalt": "fedlag",  # with UNDATED: equal figures are equal files
}
UNDATED: dict[str, Any] = {"svg": {"Date": None}, "png": {"Software": None}}
SHARED: Any = {"color": INK, "linewidth": 1.6}
OWN: Any = {"linewidth": 1.8, "linestyle": (0, (4, 1.5))}
WAY: Any = {"color": INK, "linewidth": 0.9}
ARROW: Any = {
    "angles": "xy",
    "scale_units": "xy",
    "scale": 1,  # as long as the update
    "width": 0.0045,
    "headwidth": 3.6,
    "headlength": 4.5,
    "headaxislength": 4.2,
}
STAR: Any = {"color": BEST, "marker": "*", "markersize": 11, "markeredgecolor": INK, "markeredgewidth": 0.5}


def domains(experiment: Experiment) -> Figure:
    """Every user's points, with the line all users share and the user's own."""
    figure = _figure(4.6, "Each domain is best cut by a vertical line, all of them together by a horizontal one")
    grid = figure.subplots(2, 4, sharey=True)
    for row, (kind, run) in zip(grid, experiment.fedavg.items(), strict=True):
        settled = experiment.settled[kind]
        shared, own = 100 * run.accuracy()[-1], 100 * settled.accuracy()[-1]
        for user, axes in enumerate(row):
            _points(axes, run.users[user])
            _boundary(axes, run.shared[-1], **SHARED)
            _boundary(axes, settled.models[-1, user], color=USERS[user], **OWN)
            axes.set_title(f"user {user + 1}: {shared[user]:.0f} %, own {own[user]:.0f} %")
        row[0].set_ylabel(f"{kind}\n\ny")
    for axes in grid[1]:
        axes.set_xlabel("x")
    _legend(
        figure,
        Line2D([], [], label="class 1", color=CLASSES[1], marker="o", markersize=4, linestyle=""),
        Line2D([], [], label="class 0", color=CLASSES[0], marker="^", markersize=4, linestyle=""),
        Line2D([], [], label="shared line (FedAvg)", **SHARED),
        Line2D([], [], label="own line (alone until it settles)", color=GREY, **OWN),
    )
    return figure


def paths(experiment: Experiment) -> Figure:
    """The way of the shared model from two starts; every tenth round, where each user would have taken it."""
    figure = _figure(6.4, "In domains of their own, users pull w1 apart all the way, and the shared b drifts off")
    grid = figure.subplots(2, 2, sharex="row", sharey=True, height_ratios=(1.3, 1))
    for column, (kind, run) in zip(grid.T, experiment.fedavg.items(), strict=True):
        for axes, across in zip(column, (0, 2), strict=True):
            axes.axvline(0, color=PALE, linewidth=0.8, zorder=0)
            _way(axes, experiment.aside[kind], across)
            _way(axes, run, across)
            best = experiment.pooled.models[-1, 0]
            axes.plot(best[across], best[1], zorder=5, **STAR)
            axes.set_xlim(-0.16, 0.62)
            axes.set_xlabel(SCALARS[across])
        column[0].set_title(kind)
    for axes in grid[:, 0]:
        axes.set_ylabel("w2")
    _legend(
        figure,
        Line2D([], [], label="shared model, dots every 10th round", marker="o", markersize=2.5, **WAY),
        Line2D([], [], label="best line for all points", **STAR | {"markersize": 9, "linestyle": ""}),
        *(Line2D([], [], label=f"update of user {user}", color=color) for user, color in enumerate(USERS, 1)),
        columns=3,
    )
    return figure


def cosines(experiment: Experiment) -> Figure:
    """Cosines between users' updates, and how far apart the updates are."""
    figure = _figure(4.5, "With domains users soon conflict; without they do too, later and over shorter steps")
    rounds = len(experiment.lag.updates)
    shown = sorted({0, rounds // 20, rounds - 1})
    axes = figure.subplot_mosaic(
        [[*(f"{kind} {round}" for round in shown), kind, "spread"] for kind in experiment.fedavg],
        width_ratios=[1] * len(shown) + [1.2, 1.2],
    )
    for kind, run in experiment.fedavg.items():
        conflicts = run.conflicts
        for round in shown:
            found = conflicts[round]
            _matrix(axes[f"{kind} {round}"], found.cosines)
            axes[f"{kind} {round}"].set_title(f"round {round}: {found.count} of {found.pairs}")
            axes[f"{kind} {round}"].set_xlabel("user")
        axes[f"{kind} 0"].set_ylabel(f"{kind}\n\nuser")
        _pairs(axes[kind], torch.stack([conflict.cosines for conflict in conflicts]))
        axes[kind].set_title("cosine of every pair")
        spread = torch.tensor([conflict.improvement for conflict in conflicts]).sqrt()
        axes["spread"].plot(spread, color=INK)
        axes["spread"].annotate(kind, (rounds - 1, float(spread[-1])), (0, 4), textcoords="offset points", ha="right")
        axes[kind].set_xlabel("round")
    axes["spread"].set_title("spread of the updates")
    axes["spread"].set_xlabel("round")
    axes["spread"].set_ylim(bottom=0)
    _legend(
        figure,
        Line2D([], [], label="users 1 and 2", color=USERS[0]),
        Line2D([], [], label="users 3 and 4", color=USERS[3]),
        Line2D([], [], label="the four other pairs", color=GREY),
        Patch(label="conflict", color=CONFLICT),
    )
    return figure


def lag(experiment: Experiment) -> Figure:
    """One personal scalar against none, and against training alone."""
    runs = {
        "FedAvg (k = 0)": (experiment.fedavg["non-IID"], {"color": INK}),
        "FedLAG with one personal scalar (k = 1)": (experiment.lag, {"color": USERS[0]}),
        "every user alone, for as long": (experiment.alone, {"color": USERS[3], "linestyle": "--"}),
    }
    none, one, alone = (100 * float(run.accuracy()[-1].mean()) for run, _ in runs.values())
    figure = _figure(3.0, f"One personal scalar gains {one - none:.1f} points, training alone gains {alone - none:.1f}")
    accuracy, loss, personal = figure.subplots(1, 3)
    for label, (run, style) in runs.items():
        accuracy.plot(100 * run.accuracy().mean(1), label=label, **style)
        loss.plot(run.loss().mean(1), **style)
    for user, color in enumerate(USERS):
        w1 = experiment.lag.models[:, user, 0]
        personal.plot(w1, color=color)
        _at_end(personal, w1, f"user {user + 1}", color)
    accuracy.set_ylim(75, 95)
    accuracy.set_yticks(range(75, 96, 5))
    accuracy.set_title("accuracy on own points, mean (%)")
    loss.set_title("loss on own points, mean")
    personal.set_title("FedLAG: w1 of every user")
    for axes in (accuracy, loss, personal):
        axes.set_xlabel("round")
    _legend(figure, *accuracy.get_lines())
    return figure


FIGURES: tuple[Callable[[Experiment], Figure], ...] = (domains, paths, cosines, lag)


def render(experiment: Experiment) -> dict[str, bytes]:
    """Every figure as SVG and as PNG, by file name."""
    files = {}
    with matplotlib.rc_context(STYLE):
        for make in FIGURES:
            figure = make(experiment)
            for suffix, metadata in UNDATED.items():
                image = BytesIO()
                figure.savefig(image, format=suffix, metadata=metadata)
                files[f"toy-{make.__name__}.{suffix}"] = image.getvalue()
    return files


def _figure(height: float, title: str) -> Figure:
    figure = Figure(figsize=(8.2, height))
    figure.suptitle(title, x=0.01, horizontalalignment="left")
    return figure


def _legend(figure: Figure, *handles: Line2D | Patch, columns: int | None = None) -> None:
    figure.legend(handles=handles, loc="outside lower center", ncols=columns or len(handles))


def _points(axes: Axes, user: Batch) -> None:
    for label, marker in enumerate("^o"):
        x, y = user.x[user.y == label].T
        axes.scatter(x, y, s=9, marker=marker, color=CLASSES[label], alpha=0.6, linewidths=0)
    left, right = user.x[:, 0].aminmax()
    axes.set_xlim(float(left) - 0.4, float(right) + 0.4)
    axes.set_ylim(-2.3, 2.3)


def _boundary(axes: Axes, model: Tensor, **style: Any) -> None:
    """Where w1 x + w2 y + b = 0."""
    w1, w2, b = model.tolist()
    x, y = -b * w1 / (w1**2 + w2**2), -b * w2 / (w1**2 + w2**2)
    axes.axline((x, y), (x - w2, y + w1), **style)


def _way(axes: Axes, run: Run, across: int, every: int = 10) -> None:
    """w2 upwards, another parameter across, updates to scale."""
    models, updates = run.shared[:, [across, 1]], run.updates[::every, :, [across, 1]]
    starts = models[:-1:every]
    axes.plot(*models.T, zorder=2, **WAY)
    axes.plot(*starts.T, linestyle="", marker="o", markersize=2.5, color=INK, zorder=4)
    for user, color in enumerate(USERS):
        axes.quiver(*starts.T, *updates[:, user].T, color=color, zorder=3, **ARROW)


def _matrix(axes: Axes, cosine: Tensor) -> None:
    axes.imshow(cosine.numpy(), cmap=AGREEMENT, vmin=-1, vmax=1)
    users = range(len(cosine))
    for u in users:
        for v in users:
            value = float(cosine[u, v])
            color = "white" if abs(value) > 0.6 else INK
            text = f"{value:.2f}".replace("-", "−").replace("0.", ".")
            axes.text(v, u, text, ha="center", va="center", fontsize=6.5, color=color)
    axes.set_xticks(users, [str(user + 1) for user in users])
    axes.set_yticks(users, [str(user + 1) for user in users])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _pairs(axes: Axes, cosine: Tensor) -> None:
    """The cosine of every pair over rounds."""
    sides = {(0, 1): USERS[0], (2, 3): USERS[3]}
    for u, v in combinations(range(cosine.shape[1]), 2):
        axes.plot(cosine[:, u, v], color=sides.get((u, v), GREY))
    axes.axhspan(-1.05, 0, color=CONFLICT, linewidth=0, zorder=0)
    axes.set_ylim(-1.05, 1.05)


def _at_end(axes: Axes, values: Tensor, text: str, color: str) -> None:
    axes.annotate(
        text, (len(values) - 1, float(values[-1])), (4, 0), textcoords="offset points", va="center", color=color
    )
