"""Points of four users in the plane: a vertical line separates each user's classes, the line y = 0 everybody's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fedlag.flow import Batch

Users = tuple[Batch, ...]  # x (points, 2) float64, y (points,) class numbers 0 and 1


class Domain(NamedTuple):
    """A rectangle, 2 half_width wide and 2 height high, around (centre, 0)."""

    centre: float
    side: int  # +1: class 1 lies right of the centre; -1: left of it
    half_width: float
    height: float


DOMAINS = (Domain(-6, +1, 2.0, 2.0), Domain(-2, +1, 1.2, 1.5), Domain(+2, -1, 1.2, 1.5), Domain(+6, -1, 2.0, 2.0))
POINTS = 200  # of each user, half of either class
GAP_X, GAP_Y = 0.2, 0.3  # no clean point is closer to the line it is separated by
NOISE = 0.3  # share of points whose height says nothing about their class


def non_iid(seed: int = 0) -> Users:
    """Each user has a domain of its own: every point obeys its vertical line, and about 85 % the line y = 0."""
    generator = np.random.default_rng([seed, *b"domains"])
    return tuple(_points(domain, generator) for domain in DOMAINS)


def iid(seed: int = 0) -> Users:
    """The same points, shuffled and dealt to the users."""
    x, y = everybody(non_iid(seed))
    order = torch.from_numpy(np.random.default_rng([seed, *b"deal"]).permutation(len(y)))
    return tuple(Batch(x[rows], y[rows]) for rows in torch.split(order, POINTS))


def everybody(users: Users) -> Batch:
    """All points in one place."""
    return Batch(torch.cat([user.x for user in users]), torch.cat([user.y for user in users]))


def _points(domain: Domain, generator: np.random.Generator) -> Batch:
    half = POINTS // 2
    label = np.repeat([1, -1], half)
    x = domain.centre + domain.side * label * generator.uniform(GAP_X, domain.half_width, POINTS)
    y = label * generator.uniform(GAP_Y, domain.height, POINTS)
    noisy = np.tile(np.arange(half) < round(NOISE * half), 2)  # points of a class are alike, so the first will do
    y[noisy] = generator.uniform(-domain.height, domain.height, noisy.sum())
    return Batch(torch.from_numpy(np.stack([x, y], axis=1)), torch.from_numpy((label + 1) // 2))
