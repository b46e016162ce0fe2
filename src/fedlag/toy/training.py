"""A line with three parameters, trained by a few users, and what is seen of it round by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import nan

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlag import divergence, run, tree
from fedlag.aggregate import Mean
from fedlag.algorithm import Training
from fedlag.algorithms.fedavg import FedAvg
from fedlag.divergence import Conflict
from fedlag.federation.observed import Observed
from fedlag.federation.sequential import Sequential
from fedlag.flow import Batch
from fedlag.net import Model, Net
from fedlag.optim import SGD, Adam
from fedlag.personal import Nothing, Rule
from fedlag.round import begin
from fedlag.toy.data import Users
from fedlag.tree import Params

NOTHING = Nothing()
SCALARS = ("w1", "w2", "b")
ORIGIN = (0.0, 0.0, 0.0)
ASIDE = (0.5, -0.5, 0.5)

FULL_BATCH = 10_000  # more points than anyone has
TRAINING = Training(epochs=5, batch=FULL_BATCH, optimizer=SGD(lr=0.05))
SETTLING = Training(epochs=300, batch=FULL_BATCH, optimizer=Adam(lr=0.3))  # after one round of it, lines hardly move


class Line(nn.Module):
    """Scores (0, w1 x + w2 y + b) of the two classes: their cross-entropy is the logistic loss."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.w1, self.w2, self.b = (nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in start)

    def forward(self, points: Tensor) -> Tensor:
        logit = self.w1 * points[:, 0] + self.w2 * points[:, 1] + self.b
        return torch.stack([torch.zeros_like(logit), logit], dim=1)


@dataclass(frozen=True)
class Run:
    """What happened. A model is (w1, w2, b); the first one is where everybody starts."""

    users: Users
    shared: Tensor  # (rounds + 1, 3): the server's model
    models: Tensor  # (rounds + 1, users, 3): the model each user would use
    updates: Tensor  # (rounds, users, 3): how far each user's training moved it; NaN where the user did not tell
    personal: tuple[frozenset[str], ...]  # what stays home from each round on

    @cached_property
    def conflicts(self) -> list[Conflict]:
        """Of every round, with the three parameters as one layer."""
        return [divergence.analyze({"line": updates})["line"] for updates in self.updates]

    @cached_property
    def scalar_conflicts(self) -> list[dict[str, Conflict]]:
        """Of every round, with each parameter as a layer."""
        return [divergence.analyze(dict(zip(SCALARS, updates.unbind(1), strict=True))) for updates in self.updates]

    def accuracy(self) -> Tensor:
        """Of the model each user would use, on the user's own points: (rounds + 1, users)."""
        right = [((logit > 0) == (user.y == 1)).double() for user, logit in self._logits()]
        return torch.stack(right, dim=1).mean(2)

    def loss(self) -> Tensor:
        """The same for the logistic loss."""
        losses = [functional.softplus((1 - 2 * user.y) * logit) for user, logit in self._logits()]
        return torch.stack(losses, dim=1).mean(2)

    def _logits(self) -> Iterator[tuple[Batch, Tensor]]:
        """Of every user's points, (rounds + 1, points)."""
        for number, user in enumerate(self.users):
            slopes, bias = self.models[:, number, :2], self.models[:, number, 2:]
            yield user, slopes @ user.x.T + bias


def train(
    users: Users,
    rule: Rule = NOTHING,
    start: Sequence[float] = ORIGIN,
    rounds: int = 200,
    training: Training = TRAINING,
) -> Run:
    """FedAvg with what `rule` says staying home; every user takes part in every round and counts the same."""
    task, server = begin(
        FedAvg(personal=rule, aggregator=Mean(weighting="uniform")),
        Model(Net(nn.Identity(), Line(start))),
        training,
        clients=len(users),
        seed=0,
    )
    federation = Observed(Sequential(task, lambda client, part: users[client], seed=0))
    shared, personal, updates = [_model(server.params)], [], []
    models = [shared[0].expand(len(users), -1)]
    for done in islice(run.rounds(task, server, federation, run.Sampling(), seed=0), rounds):
        params, home = done.server.params, rule.personal(done.server.rule)
        own = [tree.select(client.params, home) for _, client in sorted(federation.clients().items())]
        updates.append(torch.stack([_model(federation.replies[user].update) for user in range(len(users))]))
        shared.append(_model(params))
        models.append(torch.stack([_model({**params, **kept}) for kept in own]))
        personal.append(home)
    return Run(users, torch.stack(shared), torch.stack(models), torch.stack(updates), tuple(personal))


def _model(params: Params) -> Tensor:
    """(w1, w2, b), NaN where `params` has none."""
    missing = torch.tensor(nan, dtype=torch.float64)
    return torch.stack([params.get(f"head.{scalar}", missing) for scalar in SCALARS])
