"""What a person is told of single runs: tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedlag.results.course import Moment
from fedlag.results.scores import Spread, Summary
from fedlag.results.words import title

MOMENTS = 8


def models(run: Summary) -> list[dict[str, str]]:
    """How well models do on every client's test data, and in which round; the spread is over clients.

    Each client's own model unless the row says otherwise. The headline is best on validation data.
    """
    scored = {
        "headline": run.headline,
        "last": run.last,
        "best on test": run.optimistic,
        "last, trained again": run.last_trained,
        "participants, trained": run.trained,
        "server's, headline": run.server,
        "server's, last": run.last_server,
        "server's, trained": run.last_server_trained,
    }
    return [{"models": whose, **_scores(spread)} for whose, spread in scored.items() if spread]


def chosen(course: Sequence[Moment]) -> list[dict[str, str]]:
    """Accuracy against bytes, at a few moments from first to last."""
    places = np.unique(np.linspace(0, len(course) - 1, MOMENTS).round().astype(int))
    return [
        {
            "round": str(course[place].round),
            "MB sent": f"{(course[place].down_bytes + course[place].up_bytes) / 1e6:,.2f}",
            "validation %": f"{100 * course[place].validation:.1f}",
            "test %": f"{100 * course[place].test:.1f}",
        }
        for place in places
    ]


def side_by_side(runs: Sequence[Summary]) -> list[dict[str, str]]:
    return [
        {
            "method": title(run.method),
            "seed": str(run.seed),
            "rounds": str(run.rounds),
            "accuracy %": f"{100 * run.headline.mean:.1f}",
            "worst 10%": f"{100 * run.headline.worst:.1f}",
            "last": f"{100 * run.last.mean:.1f}",
            "optimistic": f"{100 * run.optimistic.mean:.1f}",
            "MB": f"{(run.down + run.up) / 1e6:,.1f}",
        }
        for run in runs
    ]


def _scores(spread: Spread) -> dict[str, str]:
    numbers = {
        "accuracy %": spread.mean,
        "weighted": spread.weighted,
        "median": spread.median,
        "worst 10%": spread.worst,
        "spread": spread.sd,
    }
    return {"round": str(spread.round), **{name: f"{100 * number:.1f}" for name, number in numbers.items()}}
