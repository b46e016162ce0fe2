"""pFedMe: personal models as proximal points around the shared one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlag import check, tree, twin
from fedlag.algorithm import Algorithm, Extension
from fedlag.flow import Batch, Local, Server
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Named, Rule
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class PFedMe(Algorithm):
    """Personalized Federated Learning with Moreau Envelopes (T. Dinh, Tran, Nguyen, NeurIPS 2020).

    On every batch the client's own model comes near the minimum of f(own) + penalty/2 |own - w|^2, then w moves along
    penalty (w - own). The paper's beta is the server's learning rate.
    """

    personal: Rule = Named("own.*")
    penalty: float = 15.0  # lambda; penalty times either learning rate stays below 2
    inner_steps: int = 5  # K, on the same batch
    personal_lr: float = 0.01  # of the inner steps

    def __post_init__(self) -> None:
        check.not_negative("penalty", self.penalty)
        check.count("inner_steps", self.inner_steps, least=1)
        check.positive("personal_lr", self.personal_lr)

    def extend(self, net: Model, params: Params, seed: int) -> Extension:
        return twin.extension(net, params)

    def receive(self, local: Local) -> Params:
        return twin.mirror(local.start)

    def step(self, local: Local, params: Params, state: Tree, batch: Batch) -> tuple[Params, Tree]:
        shared = tree.select(params, local.net.parameter_names)
        centre = {twin.PREFIX + name: value for name, value in shared.items()}
        for _ in range(self.inner_steps):
            grads, moved = local.grad(lambda p: self.loss(local, p, batch))(params)
            slopes = tree.add(twin.only(grads), tree.sub(centre, params), alpha=-self.penalty)
            params, _ = SGD(lr=self.personal_lr).step({**params, **moved}, slopes, {})
        own = twin.second(params)
        params, state = local.optimizer.step(params, tree.scale(tree.sub(shared, own), self.penalty), state)
        return {**params, **tree.select(own, local.net.statistic_names)}, state  # w sees no batch of its own

    def deployed(self, server: Server) -> Params:
        return twin.mirror(server.params)

    def personalize(self, local: Local) -> Params:
        if local.client.round >= 0:
            return super().personalize(local)
        params, _ = local.fit(self.receive(local), self.phases(local.training.length), purpose="tune")
        return params

    def predict(self, local: Local, params: Params, x: Tensor) -> Tensor:
        return local.net(twin.second(params), x)
