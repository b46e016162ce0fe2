"""The step near the mean that serves the worst served client best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlag import check
from fedlag.aggregate.aggregator import Aggregator
from fedlag.aggregate.blocks import SCOPES, recombine
from fedlag.flow import Replies
from fedlag.tree import Params

Vector = NDArray[np.float64]
RESCALES = ("square", "linear", "none")
SMOOTHING = 1e-8  # under roots, in units of the mean squared norm
TOLERANCE = 1e-12  # of slopes, in the same units
STEPS = 100  # at most, for each client


@dataclass(frozen=True, kw_only=True)
class CAGrad(Aggregator):
    """Conflict-Averse Gradient Descent for Multi-task Learning (Liu et al., NeurIPS 2021).

    Of all steps d no further than c |mean| from the mean, the one whose least inner product with a client's update is
    greatest. Clients take the place of tasks, and their updates that of gradients.
    """

    weighting: str = "uniform"
    c: float = 0.5
    rescale: str = "square"  # d / (1 + c²) as the authors do; "linear": d / (1 + c), which is FedAvg when all agree
    scope: str = "model"  # "layer": every layer on its own

    def __post_init__(self) -> None:
        super().__post_init__()
        check.share("c", self.c)
        check.one_of("rescale", self.rescale, RESCALES)
        check.one_of("scope", self.scope, SCOPES)

    def __call__(self, replies: Replies) -> Params:
        weights = self.weights(replies)
        return recombine(replies.update, self.scope, lambda gram: self.coefficients(gram, weights))

    def coefficients(self, gram: Tensor, weights: Tensor) -> Tensor:
        """What to take of every update, (clients,); `weights` (clients,) make the mean."""
        share = weights * len(weights)
        gram = gram * torch.outer(share, share)
        unit = float(gram.diagonal().mean())
        if unit == 0:
            return weights
        scaled: Vector = (gram / unit).numpy()
        reach = self.c * np.sqrt(max(float(scaled.mean()), 0.0))
        mixture = worst_mixture(scaled, reach)
        length = np.sqrt(max(float(mixture @ scaled @ mixture), 0.0) + SMOOTHING)
        divisor = {"square": 1 + self.c**2, "linear": 1 + self.c, "none": 1.0}[self.rescale]
        return (weights + torch.from_numpy(mixture * reach / length) * share) / divisor


def worst_mixture(gram: Vector, reach: float) -> Vector:
    """The mixture w (clients,) of updates g_w for which <g_w, mean> + reach |g_w| is least: w >= 0, Σ w = 1.

    Weight goes from the client where that costs most to the one where it costs least, each time exactly as much as
    pays most, until the two cost the same.
    """
    clients = len(gram)
    linear = gram.mean(1)
    mixture = np.full(clients, 1 / clients)
    products = gram @ mixture
    for _ in range(STEPS * clients):
        square = max(mixture @ products, 0.0) + SMOOTHING
        slopes = linear + reach * products / np.sqrt(square)
        best, worst = int(slopes.argmin()), int(np.where(mixture > 0, slopes, -np.inf).argmax())
        if slopes[worst] - slopes[best] < TOLERANCE:
            break
        moved = _least(
            slope=linear[best] - linear[worst],
            reach=reach,
            curve=gram[best, best] + gram[worst, worst] - 2 * gram[best, worst],
            half=products[best] - products[worst],
            square=square,
            most=mixture[worst],
        )
        mixture[best] += moved
        mixture[worst] -= moved
        products += moved * (gram[best] - gram[worst])
    return mixture


def _least(*, slope: float, reach: float, curve: float, half: float, square: float, most: float) -> float:
    """The x from 0 to `most` at which slope x + reach sqrt(curve x² + 2 half x + square) is least."""
    steepness = reach**2 * curve - slope**2  # not above 0: the root cannot stop the fall
    if curve <= 0 or steepness <= 0:
        return most
    height = np.sqrt(max(square / curve - (half / curve) ** 2, 0.0))
    return float(min(max(-half / curve - slope * height / np.sqrt(steepness), 0.0), most))
