"""FedRoD: a generic head and, added to its scores, a personal one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedlag import check
from fedlag.algorithm import Algorithm, Extension
from fedlag.flow import Batch, Local
from fedlag.initial import head_weight, linear
from fedlag.net import Model
from fedlag.personal import Named, Rule
from fedlag.statistics import class_counts
from fedlag.tree import Params

PREDICTORS = ("linear", "hyper")
COUNTS = "own.counts"  # of the client's classes; zeros on the server, whose copy so predicts by the generic head alone
FEWEST = 1e-8  # a class without examples counts as so many: its logarithm must be finite


@dataclass(frozen=True, kw_only=True)
class FedRoD(Algorithm):
    """On Bridging Generic and Personalized Federated Learning for Image Classification (Chen, Chao, ICLR 2022).

    The body and the generic head learn as if the client's classes were balanced; the second head learns what that
    leaves, without moving them. It is either the client's own ("linear"), or made from the shares of the client's
    classes by a small network that everybody trains ("hyper").
    """

    personal: Rule = Named("own.*")
    predictor: str = "linear"
    hidden: int = 16  # units of the small network

    def __post_init__(self) -> None:
        check.one_of("predictor", self.predictor, PREDICTORS)
        check.count("hidden", self.hidden, least=1)

    def extend(self, net: Model, params: Params, seed: int) -> Extension:
        weight = head_weight(params)
        classes = len(weight)
        counts = {COUNTS: weight.new_zeros(classes)}
        head = {name: value.clone() for name, value in params.items() if name.startswith("head.")}
        if self.predictor == "linear":
            return Extension({f"own.{name}": value for name, value in head.items()}, counts)
        made = linear("hyper.hidden", classes, self.hidden, weight, seed)
        made |= {f"hyper.start.{name}": value for name, value in head.items()}
        made |= {f"hyper.slope.{name}": value.new_zeros(self.hidden, *value.shape) for name, value in head.items()}
        return Extension(made, counts)

    def receive(self, local: Local) -> Params:
        start = local.start[COUNTS]
        return {**local.start, COUNTS: class_counts(local.work.examples("train").y, len(start)).to(start)}

    def loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        features = local.net.features(params, batch.x)
        generic = local.net.classify(params, features)
        balanced = generic + params[COUNTS].clamp_min(FEWEST).log()
        both = generic.detach() + local.net.classify(self._second_head(params), features.detach())
        return functional.cross_entropy(balanced, batch.y) + functional.cross_entropy(both, batch.y)

    def personalize(self, local: Local) -> Params:
        return super().personalize(local._replace(start=self.receive(local)))

    def predict(self, local: Local, params: Params, x: Tensor) -> Tensor:
        features = local.net.features(params, x)
        second = local.net.classify(self._second_head(params), features)
        return local.net.classify(params, features) + params[COUNTS].any() * second

    def _second_head(self, params: Params) -> Params:
        """Under the names of the first."""
        if self.predictor == "linear":
            return {name.removeprefix("own."): value for name, value in params.items() if name.startswith("own.head.")}
        shares = params[COUNTS] / params[COUNTS].sum().clamp_min(1)
        hidden = functional.linear(shares, params["hyper.hidden.weight"], params["hyper.hidden.bias"]).relu()
        return {
            name: params[f"hyper.start.{name}"] + torch.tensordot(hidden, params[f"hyper.slope.{name}"], dims=1)
            for name in params
            if name.startswith("head.")
        }
