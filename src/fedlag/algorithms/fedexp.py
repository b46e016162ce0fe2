"""FedEXP: a longer step along the mean, evaluated halfway."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlag import tree
from fedlag.aggregate import Aggregator, Extrapolated
from fedlag.algorithm import Algorithm, Outcome
from fedlag.flow import Replies, Server
from fedlag.net import Model
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedEXP(Algorithm):
    """FedExP: Speeding Up Federated Averaging via Extrapolation (Jhunjhunwala, Wang, Joshi, ICLR 2023).

    The server goes further than the mean the more clients disagree, and so swings around its goal: what is evaluated
    is the mean of the last two models, while training goes on from the last.
    """

    aggregator: Aggregator = Extrapolated()

    def remember(self, params: Params, clients: int) -> Tree:
        return {"before": params}

    def aggregate(self, server: Server, replies: Replies, net: Model) -> Outcome:
        return super().aggregate(server, replies, net)._replace(memory={"before": server.params})

    def deployed(self, server: Server) -> Params:
        before = server.memory["before"]
        last = tree.select(server.params, before)
        return {**server.params, **tree.map(lambda a, b: torch.lerp(a, b, 0.5), last, before)}
