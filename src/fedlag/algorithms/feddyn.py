"""FedDyn: clients' own optima are made to coincide with everybody's."""

from __future__ import annotations

from dataclasses import dataclass

from fedlag import check, tree
from fedlag.aggregate import Aggregator, Mean
from fedlag.algorithm import Algorithm, Finish, Outcome
from fedlag.flow import Local, Replies, Server
from fedlag.net import Model
from fedlag.tree import Params, Tree

EVALUATED = ("server", "mean")


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """Federated Learning Based on Dynamic Regularization (Acar et al., ICLR 2021).

    Clients minimise their loss - <dual, w> + alpha/2 ||w - start||^2. The server's model is the mean of theirs, led
    onwards by every past displacement: the lead is (1 / all clients) of their sum, -h / alpha in the paper.
    """

    aggregator: Aggregator = Mean(weighting="uniform")
    alpha: float = 0.01
    evaluated: str = "server"  # the server's model; or "mean", the mean of participants it is made of

    def __post_init__(self) -> None:
        check.positive("alpha", self.alpha)
        check.one_of("evaluated", self.evaluated, EVALUATED)

    def remember(self, params: Params, clients: int) -> Tree:
        return {"lead": tree.zeros_like(params), "clients": clients}

    def remember_client(self, params: Params) -> Tree:
        return tree.zeros_like(params)

    def correct(self, local: Local, params: Params, grads: Params) -> Params:
        dual, start = local.client.memory, local.start
        return {n: g - dual.get(n, 0.0) + self.alpha * (params[n] - start[n]) for n, g in grads.items()}

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        dual = tree.select(local.client.memory, local.net.parameter_names)
        return Finish(tree.map(lambda d, y, w: d - self.alpha * (y - w), dual, end, local.start), {})

    def aggregate(self, server: Server, replies: Replies, net: Model) -> Outcome:
        lead, clients = server.memory["lead"], server.memory["clients"]
        lead = tree.map(lambda updates, lead: lead + updates.sum(0) / clients, replies.update, lead)
        outcome = super().aggregate(server, replies, net)
        return outcome._replace(params=tree.add(outcome.params, lead), memory={"lead": lead, "clients": clients})

    def deployed(self, server: Server) -> Params:
        if self.evaluated == "server":
            return server.params
        lead = server.memory["lead"]
        return {name: value - lead.get(name, 0.0) for name, value in server.params.items()}
