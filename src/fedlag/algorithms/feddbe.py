"""FedDBE: take what is a client's own out of its mean features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedlag import check
from fedlag.algorithm import Algorithm, Extension
from fedlag.flow import Batch, Local
from fedlag.initial import head_weight
from fedlag.net import Model
from fedlag.personal import Named, Rule
from fedlag.tree import Params, Tree

BIAS, MEAN, CONSENSUS = "own.bias", "own.mean", "consensus"


@dataclass(frozen=True, kw_only=True)
class FedDBE(Algorithm):
    """Eliminating Domain Bias for Federated Learning in Representation Space (Zhang et al., NeurIPS 2023).

    Each client adds a bias of its own to its features, whose running mean is pulled to the consensus. Round 0 only
    finds that consensus: everybody trains aside, tells its mean features, and the model stays as it was.
    """

    personal: Rule = Named("own.*")
    strength: float = 50.0  # kappa, of the pull
    momentum: float = 1.0  # mu, the present batch's share in the running mean

    opens_with_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.not_negative("strength", self.strength)
        check.portion("momentum", self.momentum)

    def extend(self, net: Model, params: Params, seed: int) -> Extension:
        head = head_weight(params)
        bias, mean, consensus = (head.new_zeros(head.shape[1]) for _ in range(3))
        return Extension({BIAS: bias}, {MEAN: mean, CONSENSUS: consensus})

    def prepare(self, local: Local) -> Tree:
        if not _opening(local):
            return {}
        phases = self.phases(local.training.length)
        end, _ = local.fit(self.receive(local), phases, purpose="opening", loss=self._opening_loss)
        return {CONSENSUS: end[MEAN]}

    def receive(self, local: Local) -> Params:
        return {**local.start, MEAN: torch.zeros_like(local.start[MEAN]), **local.notes}

    def loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        features = local.net.features(params, batch.x)
        distance = self._running_mean(params, features) - params[CONSENSUS]
        scores = local.net.classify(params, features + params[BIAS])
        return functional.cross_entropy(scores, batch.y) + self.strength / 2 * distance.square().mean()

    def step(self, local: Local, params: Params, state: Tree, batch: Batch) -> tuple[Params, Tree]:
        return (params, state) if _opening(local) else super().step(local, params, state, batch)

    def predict(self, local: Local, params: Params, x: Tensor) -> Tensor:
        return local.net.classify(params, local.net.features(params, x) + params[BIAS])

    def _opening_loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        features = local.net.features(params, batch.x)
        self._running_mean(params, features)
        return functional.cross_entropy(local.net.classify(params, features), batch.y)

    def _running_mean(self, params: Params, features: Tensor) -> Tensor:
        """The mean with this batch in it; the entry that carries it is moved along."""
        mean = (1 - self.momentum) * params[MEAN] + self.momentum * features.mean(0)
        params[MEAN].copy_(mean.detach())
        return mean


def _opening(local: Local) -> bool:
    return local.message.round == 0
