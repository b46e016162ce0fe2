"""Is a difference between two methods more than luck? Paired tests on arrays, corrected for how many are made.

A difference has to show twice: across seeds (would other draws of partition, weights and participants say the same?)
and across clients (is it more than a few of them?). The larger of the two p-values counts. Clients of one seed share
a server and rise and fall together, so however many they are, a single seed proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.05  # false alarms in a family of tests
FOUND = 0.8  # chance of finding a difference called detectable

BEATS, LOSES, OPEN = "beats", "loses to", "no difference shown"


class Contrast(NamedTuple):
    """One method's accuracy minus another's, in points."""

    points: float  # mean over seeds
    margin: float | None  # half the 95 % interval over seeds; None for a single seed
    detectable: float | None  # the smallest difference these seeds would show in four of five cases, if tested alone
    across_seeds: float  # p of the paired t-test; 1 for a single seed
    across_clients: float  # p of Wilcoxon's signed-rank test; 1 if most clients say the opposite
    p: float  # the larger one; after `corrected`, for all contrasts of the family

    @property
    def outcome(self) -> str:
        if self.p >= LEVEL:
            return OPEN
        return BEATS if self.points > 0 else LOSES


def contrast(by_seed: ArrayLike, by_client: ArrayLike) -> Contrast:
    """Differences in points: each seed's mean over clients (seeds,), and each client's own (clients,)."""
    # Rounded: a last bit is no difference.
    seeds, clients = (np.round(np.asarray(given, float), 9) for given in (by_seed, by_client))
    points = float(seeds.mean())
    across_seeds, across_clients = p_across_seeds(seeds), p_across_clients(clients, points)
    spread = float(seeds.std(ddof=1)) if len(seeds) > 1 else None
    return Contrast(
        points=points,
        margin=None if spread is None else margin(spread, len(seeds)),
        detectable=None if spread is None else detectable(spread, len(seeds)),
        across_seeds=across_seeds,
        across_clients=across_clients,
        p=max(across_seeds, across_clients),
    )


def corrected(family: Mapping[str, Contrast]) -> dict[str, Contrast]:
    """The same contrasts, with Holm's correction for testing them all."""
    adjusted = holm([one.p for one in family.values()])
    return {name: one._replace(p=float(p)) for (name, one), p in zip(family.items(), adjusted, strict=True)}


def p_across_seeds(differences: ArrayLike) -> float:
    """Two-sided p of the paired t-test, from one difference for each seed."""
    from scipy.stats import t

    values = np.asarray(differences, float)
    if len(values) < 2 or not values.any():
        return 1.0
    error = values.std(ddof=1) / np.sqrt(len(values))
    with np.errstate(divide="ignore"):  # equal differences
        return float(2 * t.sf(np.abs(values.mean()) / error, len(values) - 1))


def p_across_clients(differences: ArrayLike, points: float) -> float:
    """Twice the p of Wilcoxon's signed-rank test that clients say the same as the mean, `points`.

    differences: one for each client; equal models say nothing.
    """
    from scipy.stats import wilcoxon

    values = np.asarray(differences, float)
    values = values[values != 0]
    if not len(values):
        return 1.0
    return min(1.0, 2 * float(wilcoxon(values, alternative="greater" if points > 0 else "less").pvalue))


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """p-values as Holm's step-down method raises them: below a level, they are true of the whole family."""
    values = np.asarray(p, float)
    order = values.argsort()
    raised = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    return np.asarray(np.minimum(raised, 1.0)[order.argsort()])


def margin(spread: float, seeds: int, level: float = LEVEL) -> float:
    """Half the interval that holds the mean difference, for a spread (standard deviation) over seeds."""
    from scipy.stats import t

    return float(t.isf(level / 2, seeds - 1) * spread / np.sqrt(seeds))


def power(points: float, spread: float, seeds: int, level: float = LEVEL) -> float:
    """Chance that the test across seeds finds a true difference of `points`, with the right sign."""
    from scipy.stats import nct, t

    return float(nct.sf(t.isf(level / 2, seeds - 1), seeds - 1, abs(points) * np.sqrt(seeds) / spread))


def detectable(spread: float, seeds: int, level: float = LEVEL) -> float:
    """The smallest true difference that the test across seeds finds in four of five cases."""
    from scipy.optimize import brentq

    if spread == 0:
        return 0.0
    return float(brentq(lambda points: power(points, spread, seeds, level) - FOUND, 0, 100 * spread))
