"""MOON: features are drawn to the received model's and away from the client's previous one's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedlag import check
from fedlag.algorithm import Algorithm
from fedlag.flow import Batch, Local
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class MOON(Algorithm):
    """Model-Contrastive Federated Learning (Li et al., CVPR 2021).

    Clients minimise their loss + mu * contrast, between features as the trained model computes them, as the received
    model does, and as the client's last trained model does.
    """

    mu: float = 1.0
    temperature: float = 0.5

    keeps: ClassVar[str] = "*"

    def __post_init__(self) -> None:
        check.not_negative("mu", self.mu)
        check.positive("temperature", self.temperature)

    def loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        features = local.net.features(params, batch.x)
        loss = functional.cross_entropy(local.net.classify(params, features), batch.y)
        previous = local.client.params
        if not previous:  # then it stands for the received model, and the two pulls cancel
            return loss
        with local.net.evaluating():
            others = [local.net.features(model, batch.x) for model in (local.start, previous)]
        return loss + self.mu * contrast(features, others, self.temperature)


def contrast(features: Tensor, others: list[Tensor], temperature: float) -> Tensor:
    """How little the features (examples, width) resemble the first of the others rather than the rest.

    -log(e^s_0 / sum_i e^s_i), where s_i is the cosine with the i-th over the temperature; the mean over examples.
    """
    similar = torch.stack([functional.cosine_similarity(features, other) for other in others], dim=1) / temperature
    return functional.cross_entropy(similar, torch.zeros(len(features), dtype=torch.int64, device=features.device))
