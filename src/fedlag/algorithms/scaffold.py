"""SCAFFOLD: gradients corrected for what is peculiar to a client."""

from __future__ import annotations

from dataclasses import dataclass

from fedlag import tree
from fedlag.aggregate import Aggregator, Mean
from fedlag.algorithm import Algorithm, Finish, Outcome
from fedlag.errors import InputError
from fedlag.flow import Local, Replies, Server
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(Algorithm):
    """SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (Karimireddy et al., ICML 2020).

    A client's control is the mean gradient on its last path; the server's is the mean over all clients, zeros of those
    never met included. Every gradient is corrected by the difference. (The paper's option II.)
    """

    aggregator: Aggregator = Mean(weighting="uniform")

    def remember(self, params: Params, clients: int) -> Tree:
        return {"control": tree.zeros_like(params), "clients": clients}

    def remember_client(self, params: Params) -> Tree:
        return tree.zeros_like(params)

    def message(self, server: Server) -> Tree:
        return server.memory["control"]

    def prepare(self, local: Local) -> Tree:
        if not isinstance(local.optimizer, SGD) or local.optimizer.momentum:
            raise InputError(
                f"SCAFFOLD takes the way a client went for a sum of gradients, which it is not with {local.optimizer}; "
                'choose training.optimizer = "sgd" and training.momentum = 0.'
            )
        return {}

    def correct(self, local: Local, params: Params, grads: Params) -> Params:
        own, everyone = local.client.memory, local.message.extra
        return {name: g - own.get(name, 0.0) + everyone.get(name, 0.0) for name, g in grads.items()}

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        own, everyone = tree.select(local.client.memory, local.net.parameter_names), local.message.extra
        if not steps:
            return Finish(own, tree.zeros_like(own))
        path = steps * local.optimizer.lr
        control = tree.map(lambda c, mean, w, y: c - mean + (w - y) / path, own, everyone, local.start, end)
        return Finish(control, tree.sub(control, own))

    def aggregate(self, server: Server, replies: Replies, net: Model) -> Outcome:
        control, clients = server.memory["control"], server.memory["clients"]
        change = tree.map(lambda changes: changes.sum(0) / clients, replies.extra)
        memory = {"control": tree.add(change, control), "clients": clients}
        return super().aggregate(server, replies, net)._replace(memory=memory)
