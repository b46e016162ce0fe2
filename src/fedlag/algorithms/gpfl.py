"""GPFL: one body's features, seen once for everybody and once for this client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedlag import check
from fedlag.algorithm import Algorithm, Extension
from fedlag.flow import Batch, Local
from fedlag.initial import head_weight, linear, normal
from fedlag.net import Model
from fedlag.personal import Named, Rule
from fedlag.statistics import class_counts
from fedlag.tree import Params

CLASSES = "classes.embedding"
CONVERSIONS = ("valve.scale", "valve.shift")
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class GPFL(Algorithm):
    """GPFL: Simultaneously Learning Global and Personalized Feature Information … (Zhang et al., ICCV 2023).

    A conditional valve scales and shifts the features. By the mean embedding of all classes they are guided toward the
    embedding of their own class; by that of the client's examples its head reads them.
    """

    personal: Rule = Named("head.*")
    magnitude: float = 1e-2  # lambda, of the distance to the embeddings as received
    decay: float = 1e-1  # mu, weight decay of embeddings and valve
    stale_condition: bool = False  # conditions from the embeddings this client last had, as in the authors' code

    keeps: ClassVar[str] = CLASSES

    def __post_init__(self) -> None:
        check.not_negative("magnitude", self.magnitude)
        check.not_negative("decay", self.decay)

    def extend(self, net: Model, params: Params, seed: int) -> Extension:
        head = head_weight(params)
        width = head.shape[1]
        added = {CLASSES: normal(CLASSES, head, seed)}
        for name in CONVERSIONS:
            added |= linear(name, width, width, head, seed)
            added |= {f"{name}.norm.weight": head.new_ones(width), f"{name}.norm.bias": head.new_zeros(width)}
        return Extension(added, {})

    def loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        features = local.net.features(params, batch.x)
        general, own = self._conditions(local)
        scores = local.net.classify(params, valve(params, features, own))
        guided = valve(params, features, general)
        angles = functional.normalize(guided) @ functional.normalize(params[CLASSES]).T
        distance = (guided - local.start[CLASSES][batch.y]).square().sum().add(TINY).sqrt()
        losses = functional.cross_entropy(scores, batch.y) + functional.cross_entropy(angles, batch.y)
        return losses + self.magnitude * distance

    def correct(self, local: Local, params: Params, grads: Params) -> Params:
        return {
            name: grad + self.decay * params[name] if name.startswith(("classes.", "valve.")) else grad
            for name, grad in grads.items()
        }

    def predict(self, local: Local, params: Params, x: Tensor) -> Tensor:
        _, own = self._conditions(local)
        return local.net.classify(params, valve(params, local.net.features(params, x), own))

    def _conditions(self, local: Local) -> tuple[Tensor, Tensor]:
        """The mean embedding (width,) of all classes, and of this client's examples."""
        received = local.start[CLASSES]
        table = local.client.params.get(CLASSES, torch.zeros_like(received)) if self.stale_condition else received
        counts = class_counts(local.work.examples("train").y, len(table)).to(table)
        return table.mean(0), counts / counts.sum() @ table


def valve(params: Params, features: Tensor, condition: Tensor) -> Tensor:
    """Features (examples, width) scaled and shifted as the condition (width,) says."""
    scale, shift = (_convert(params, name, condition) for name in CONVERSIONS)
    return ((1 + scale) * features + shift).relu()


def _convert(params: Params, name: str, condition: Tensor) -> Tensor:
    hidden = functional.linear(condition, params[f"{name}.weight"], params[f"{name}.bias"]).relu()
    return functional.layer_norm(hidden, hidden.shape, params[f"{name}.norm.weight"], params[f"{name}.norm.bias"])
