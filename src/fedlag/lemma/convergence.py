"""The convergence bound where all its constants are known: clients whose losses are bowls, and full gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedlag import run, tree
from fedlag.aggregate import Aggregator, Mean
from fedlag.algorithm import Algorithm, Training
from fedlag.federation.sequential import Sequential
from fedlag.flow import Batch, Local
from fedlag.lag import LAG
from fedlag.net import Model, Net
from fedlag.optim import SGD
from fedlag.personal import Nothing, Rule
from fedlag.round import begin
from fedlag.tree import Params

NAMES = ("body.weight", "head.weight")
RULES: dict[str, Rule] = {
    "nothing": Nothing(),
    "LAG, dynamic": LAG(k=1, warmup=0),
    "LAG, frozen": LAG(k=1, warmup=1, mode="frozen"),
}


class Bowls(NamedTuple):
    """Client u's loss is ½ Σ_i curvature[u, i] (w_i - centre[u, i])². Half of w is the body, the rest the head."""

    curvature: Tensor  # (clients, size)
    centre: Tensor  # (clients, size)

    @property
    def smoothness(self) -> float:
        """L."""
        return float(self.curvature.max())

    @property
    def optimum(self) -> Tensor:
        """Where the mean loss is least."""
        return (self.curvature * self.centre).sum(0) / self.curvature.sum(0)

    def losses(self, models: Tensor) -> Tensor:
        """models: (clients, size) or (size,). Returns (clients,)."""
        return (self.curvature * (models - self.centre) ** 2).sum(1) / 2

    @property
    def noise(self) -> float:
        """sigma_*²: the clients' mean squared gradient at the optimum."""
        return float(((self.curvature * (self.optimum - self.centre)) ** 2).sum(1).mean())


def bowls(seed: int = 0, clients: int = 8, size: int = 5) -> Bowls:
    """Clients agree about the body and disagree about the head."""
    generator = np.random.default_rng([seed, *b"bowls"])
    curvature = generator.uniform(0.2, 1.0, (clients, 2 * size))
    centre = generator.normal(1.0, 0.1, (clients, 2 * size))
    centre[:, size:] += generator.normal(0.0, 3.0, (clients, size))
    return Bowls(torch.from_numpy(curvature), torch.from_numpy(centre))


class Vector(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, dtype=torch.float64))


@dataclass(frozen=True, kw_only=True)
class Descent(Algorithm):
    """Averaging in bowls: a client's one example holds its curvature and its centre."""

    aggregator: Aggregator = Mean(weighting="uniform")

    def loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        curvature, centre = batch.x[0]
        distance: Tensor = _vector(params) - centre
        return torch.dot(curvature, distance.square()) / 2


class Bound(NamedTuple):
    """One setting of the theorem beside what happens."""

    steps: int  # E
    rate: float  # eta, as a share of its upper limit 1/(6EL)
    rule: str  # what stays personal
    bound: float  # of the loss above its least value, mean over rounds, without the term of improvement
    measured: float  # the same as it is; below zero where clients with layers of their own beat every shared model
    last: float  # after the last round
    factor: float  # A, which the theorem needs above zero


def convergence(
    problem: Bowls, rounds: int = 100, steps: tuple[int, ...] = (2, 5), rates: tuple[float, ...] = (0.1, 0.5, 0.99)
) -> list[Bound]:
    return [descend(problem, rule, number, share, rounds) for number in steps for share in rates for rule in RULES]


def descend(problem: Bowls, rule: str, steps: int, share: float, rounds: int) -> Bound:
    """share: the learning rate over 1/(6EL), up to which the theorem holds."""
    smooth, clients = problem.smoothness, len(problem.centre)
    rate = share / (6 * steps * smooth)
    size = problem.centre.shape[1]
    net = Net(Vector(size // 2), Vector(size - size // 2))
    training = Training(epochs=steps, batch=1, optimizer=SGD(lr=rate))
    algorithm = Descent(personal=RULES[rule])
    task, server = begin(algorithm, Model(net), training, clients, seed=0)

    def example(client: int, part: str) -> Batch:
        x = torch.stack([problem.curvature[client], problem.centre[client]])
        return Batch(x.unsqueeze(0), torch.zeros(1, dtype=torch.int64))

    federation = Sequential(task, example, seed=0)
    least = float(problem.losses(problem.optimum).mean())
    start = _vector(server.params)
    above = [float(problem.losses(start).mean()) - least]
    for done in islice(run.rounds(task, server, federation, run.Sampling(), seed=0), rounds):
        home = algorithm.personal.personal(done.server.rule)
        kept = [tree.select(client.params, home) for _, client in sorted(federation.clients().items())]
        models = torch.stack([_vector({**done.server.params, **own}) for own in kept])
        above.append(float(problem.losses(models).mean()) - least)
    return Bound(
        steps=steps,
        rate=share,
        rule=rule,
        bound=theorem(problem, rate, steps, rounds, float(((start - problem.optimum) ** 2).sum())),
        measured=float(np.mean(above[:-1])),
        last=above[-1],
        factor=improvement_factor(rate, steps, smooth),
    )


def theorem(problem: Bowls, rate: float, steps: int, rounds: int, distance: float) -> float:
    """The three terms of the bound with the constants of the proof; `distance` is |w_0 - w_*|²."""
    beginning = 3 * distance / (rounds * rate * steps)
    drift = 36 * rate**2 * steps * (steps - 1) * problem.smoothness
    return beginning + (9 * rate + drift) * problem.noise


def improvement_factor(rate: float, steps: int, smooth: float) -> float:
    """A = 24 E²(E-1) η⁴ L² - η² E, which the theorem multiplies the term of improvement by."""
    return 24 * steps**2 * (steps - 1) * rate**4 * smooth**2 - rate**2 * steps


def window(steps: int) -> tuple[float, float]:
    """The step sizes, times L, between which A > 0 and the proof holds: (lower, upper). Empty where lower > upper."""
    return 1 / math.sqrt(24 * steps * (steps - 1)), 1 / (6 * steps)


def _vector(params: Params) -> Tensor:
    return torch.cat([params[name] for name in NAMES])
