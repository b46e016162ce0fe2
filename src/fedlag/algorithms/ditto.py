"""Ditto: personal models pulled toward the shared one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from fedlag import check, tree, twin
from fedlag.algorithm import Algorithm, Extension, Phase
from fedlag.flow import Batch, Local, Server
from fedlag.net import Model
from fedlag.personal import Named, Rule
from fedlag.randomness import undisturbed
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm):
    """Ditto: Fair and Robust Federated Learning Through Personalization (Li, Hu, Beirami, Smith, ICML 2021).

    FedAvg, and beside it each client's own model, trained on the same batches for f(own) + penalty/2 |own - w|^2 with
    w as received.
    """

    personal: Rule = Named("own.*")
    penalty: float = 1.0  # lambda
    personal_epochs: int | None = None  # s; as long as the shared model trains where none is given

    def __post_init__(self) -> None:
        check.not_negative("penalty", self.penalty)
        if self.personal_epochs is not None:
            check.count("personal_epochs", self.personal_epochs)

    def extend(self, net: Model, params: Params, seed: int) -> Extension:
        return twin.extension(net, params)

    def receive(self, local: Local) -> Params:
        with undisturbed():  # so that the shared model draws the same dropout as in FedAvg
            params, _ = local.fit(_opened(local), (self._phase(local),), purpose="train", loss=self._pulled)
        return {**local.start, **twin.only(params)}

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(epochs, "body.* head.*"),)

    def loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        return functional.cross_entropy(local.net(params, batch.x), batch.y)

    def deployed(self, server: Server) -> Params:
        return twin.mirror(server.params)

    def personalize(self, local: Local) -> Params:
        newcomer = local.client.round < 0
        phases = (self._phase(local), *self.tune) if newcomer else self.tune
        params, _ = local.fit(_opened(local), phases, purpose="tune", loss=self._pulled)
        return params

    def predict(self, local: Local, params: Params, x: Tensor) -> Tensor:
        return local.net(twin.second(params), x)

    def _phase(self, local: Local) -> Phase:
        return Phase(local.training.length if self.personal_epochs is None else self.personal_epochs)

    def _pulled(self, local: Local, params: Params, batch: Batch) -> Tensor:
        own = twin.second(params)
        drift = tree.sub(tree.select(own, local.net.parameter_names), local.start)
        return self.loss(local, own, batch) + self.penalty / 2 * tree.sq_norm(drift)


def _opened(local: Local) -> Params:
    """Where a client stands; its own model opens as the shared one."""
    return local.start if local.client.round >= 0 else twin.mirror(local.start)
