"""APFL: personal models as mixtures of a private and the shared one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedlag import check, twin
from fedlag.algorithm import Algorithm, Extension
from fedlag.flow import Batch, Local, Server
from fedlag.net import Model
from fedlag.personal import Named, Rule
from fedlag.randomness import undisturbed
from fedlag.tree import Params, Tree

MIXES = ("parameters", "logits")
SHARE = "own.alpha"


@dataclass(frozen=True, kw_only=True)
class APFL(Algorithm):
    """Adaptive Personalized Federated Learning (Deng, Kamani, Mahdavi, 2020).

    FedAvg, and on the same batches a private model v that descends on the loss of the mixture
    alpha v + (1 - alpha) w, which is what the client uses.
    """

    personal: Rule = Named("own.*")
    alpha: float = 0.5  # the private model's share at the start
    adaptive: bool = False  # one gradient step on alpha in every round, on its first batch
    mix: str = "parameters"  # "logits": the scores of the two models are mixed instead

    def __post_init__(self) -> None:
        check.fraction("alpha", self.alpha)
        check.one_of("mix", self.mix, MIXES)

    def extend(self, net: Model, params: Params, seed: int) -> Extension:
        trained, carried = twin.extension(net, params)
        share = {SHARE: params[net.parameter_names[0]].new_tensor(self.alpha)}
        return Extension(trained | share, carried) if self.adaptive else Extension(trained, carried | share)

    def receive(self, local: Local) -> Params:
        return local.start if local.client.round >= 0 else twin.mirror(local.start)

    def loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        with undisturbed():  # so that the shared model draws the same dropout as in FedAvg
            private = self._private(local, params, batch.x)
        shared = local.net(params, batch.x)
        mixed = self._mixed(params, shared.detach(), private)
        return functional.cross_entropy(shared, batch.y) + functional.cross_entropy(mixed, batch.y)

    def correct(self, local: Local, params: Params, grads: Params) -> Params:
        return grads if local.number == 0 else {name: grad for name, grad in grads.items() if name != SHARE}

    def step(self, local: Local, params: Params, state: Tree, batch: Batch) -> tuple[Params, Tree]:
        params, state = super().step(local, params, state, batch)
        return {**params, SHARE: params[SHARE].clamp(0, 1)}, state

    def deployed(self, server: Server) -> Params:
        return twin.mirror(server.params)

    def predict(self, local: Local, params: Params, x: Tensor) -> Tensor:
        return self._mixed(params, local.net(params, x), self._private(local, params, x))

    def _private(self, local: Local, params: Params, x: Tensor) -> Tensor:
        """Scores of the private model or, where parameters are mixed, of the mixture; the shared one does not move."""
        own, names = twin.second(params), local.net.parameter_names if self.mix == "parameters" else ()
        mixture = {name: torch.lerp(params[name].detach(), own[name], params[SHARE]) for name in names}
        return local.net({**own, **mixture}, x)

    def _mixed(self, params: Params, shared: Tensor, private: Tensor) -> Tensor:
        return torch.lerp(shared, private, params[SHARE]) if self.mix == "logits" else private
