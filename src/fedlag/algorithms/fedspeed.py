"""FedSpeed: many local steps towards flat minima, with the bias of the proximal term taken out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlag import check, tree
from fedlag.aggregate import Aggregator, Mean
from fedlag.algorithm import Algorithm, Finish, Outcome
from fedlag.flow import Batch, Local, Replies, Server
from fedlag.net import Model
from fedlag.tree import Params, Tree

CORRECTIONS = ("participants", "everyone")
TINY = 1e-12  # keeps the direction of a gradient of length zero finite


@dataclass(frozen=True, kw_only=True)
class FedSpeed(Algorithm):
    """Larger Local Interval, Less Communication Round, and Higher Generalization Accuracy (Sun et al., ICLR 2023).

    Every step follows the gradient a little uphill, a proximal term and, against that term's bias, a correction summed
    up from past displacements, which is also added to what goes into the average.
    """

    aggregator: Aggregator = Mean(weighting="uniform")
    penalty: float = 0.1  # of the proximal term, 1 / lambda
    rho: float = 0.1  # how far uphill
    alpha: float = 1.0  # weight of the gradient uphill; the rest goes to the one on the spot
    corrections: str = "participants"  # whose go into the average; or "everyone", as the authors' code has it

    def __post_init__(self) -> None:
        check.not_negative("penalty", self.penalty)
        check.not_negative("rho", self.rho)
        check.fraction("alpha", self.alpha)
        check.one_of("corrections", self.corrections, CORRECTIONS)

    def remember(self, params: Params, clients: int) -> Tree:
        return {} if self.corrections == "participants" else {"ahead": tree.zeros_like(params), "clients": clients}

    def remember_client(self, params: Params) -> Tree:
        return tree.zeros_like(params)

    def step(self, local: Local, params: Params, state: Tree, batch: Batch) -> tuple[Params, Tree]:
        gradient = local.grad(lambda p: self.loss(local, p, batch))
        grads, moved = gradient(params)
        if self.alpha and self.rho:
            distance = self.rho / (tree.sq_norm(grads).sqrt() + TINY)
            uphill, _ = gradient({**params, **tree.add(tree.select(params, grads), tree.scale(grads, distance))})
            grads = tree.map(lambda here, there: torch.lerp(here, there, self.alpha), grads, uphill)
        return local.optimizer.step({**params, **moved}, self.correct(local, params, grads), state)

    def correct(self, local: Local, params: Params, grads: Params) -> Params:
        correction, start = local.client.memory, local.start
        return {n: g - correction.get(n, 0.0) + self.penalty * (params[n] - start[n]) for n, g in grads.items()}

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        correction = tree.select(local.client.memory, local.net.parameter_names)
        correction = tree.map(lambda c, y, w: c - self.penalty * (y - w), correction, end, local.start)
        if self.corrections == "everyone" or not self.penalty:
            return Finish(correction, {})
        ahead = tree.map(lambda c, y: y - c / self.penalty, correction, end)
        return Finish(correction, {}, {**end, **ahead})

    def aggregate(self, server: Server, replies: Replies, net: Model) -> Outcome:
        outcome = super().aggregate(server, replies, net)
        if self.corrections == "participants" or not self.penalty:
            return outcome
        ahead, clients = server.memory["ahead"], server.memory["clients"]
        ahead = tree.map(lambda updates, past: past + updates.sum(0) / clients, replies.update, ahead)
        return outcome._replace(params=tree.add(outcome.params, ahead), memory={"ahead": ahead, "clients": clients})
