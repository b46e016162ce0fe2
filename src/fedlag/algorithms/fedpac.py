"""FedPAC: features drawn to everybody's class means, and for each client the best mixture of heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedlag import check, tree
from fedlag.algorithm import Algorithm, Finish, Outcome, Phase
from fedlag.flow import Batch, Local, Replies, Server
from fedlag.initial import head_weight
from fedlag.net import Model
from fedlag.statistics import class_counts, class_means, features, simplex_minima
from fedlag.tree import Params, Tree

SMALLEST = 1e-3  # share of a head that is worth mixing in
RESIDUAL = 1e-8  # a mixture further from its optimality conditions is not used


@dataclass(frozen=True, kw_only=True)
class FedPAC(Algorithm):
    """Personalized Federated Learning with Feature Alignment and Classifier Collaboration (Xu et al., ICLR 2023).

    A client fits its head to the body it received, then the body under that head, with features drawn to the class
    means of all. Only bodies are averaged; the server combines heads anew for every participant.
    """

    alignment: float = 1.0  # lambda, of the distance to the class means
    head_epochs: int = 1  # before the epochs of the body, which are the training's

    averages: ClassVar[str] = "body.*"

    def __post_init__(self) -> None:
        check.not_negative("alignment", self.alignment)
        check.count("head_epochs", self.head_epochs)

    def remember(self, params: Params, clients: int) -> Tree:
        weight = head_weight(params)
        return {"heads": {}, "centroids": torch.zeros_like(weight), "known": weight.new_zeros(len(weight)).bool()}

    def message(self, server: Server) -> Tree:
        return {name: server.memory[name] for name in ("centroids", "known")}

    def letter(self, server: Server, client: int) -> Tree:
        return server.memory["heads"].get(client, {})

    def prepare(self, local: Local) -> Tree:
        """With the body as received: where features are drawn to, and what the client's head can be weighed by."""
        means, counts, square = _measure(local, local.start)
        moments = means * (counts / counts.sum()).unsqueeze(1)
        variance = (square - moments.double().square().sum()) / counts.sum()
        return {"moments": moments, "variance": variance, "targets": _targets(local, means)}

    def receive(self, local: Local) -> Params:
        return {**local.start, **local.letter.extra}

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return Phase(self.head_epochs, "head.*"), Phase(epochs, "body.*")

    def loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        z = local.net.features(params, batch.x)
        loss = functional.cross_entropy(local.net.classify(params, z), batch.y)
        targets = local.notes.get("targets")
        return loss if targets is None else loss + self.alignment * functional.mse_loss(z, targets[batch.y])

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        means, counts, _ = _measure(local, end)
        told = {"moments": local.notes["moments"], "variance": local.notes["variance"]}
        head = tree.select(end, tree.under(end, "head.*"))
        return Finish(local.client.memory, {**told, "heads": head, "means": means, "counts": counts})

    def aggregate(self, server: Server, replies: Replies, net: Model) -> Outcome:
        told = replies.extra
        mixtures = self.mixtures(told["moments"], told["variance"])
        mixed = tree.map(lambda heads: torch.tensordot(mixtures.to(heads.dtype), heads, dims=1), told["heads"])
        theirs = {client: tree.map(lambda x, i=i: x[i].clone(), mixed) for i, client in enumerate(replies.ids)}
        heads = dict(sorted({**server.memory["heads"], **theirs}.items()))

        total = told["counts"].sum(0)
        known = total > 0
        means = torch.einsum("uc,ucd->cd", told["counts"], told["means"]) / total.clamp_min(1).unsqueeze(1)
        centroids = torch.where(known.unsqueeze(1), means, server.memory["centroids"])
        memory = {"heads": heads, "centroids": centroids, "known": known | server.memory["known"]}
        return super().aggregate(server, replies, net)._replace(memory=memory)

    def personalize(self, local: Local) -> Params:
        return super().personalize(local._replace(start=self.receive(local)))

    def mixtures(self, moments: Tensor, variance: Tensor) -> Tensor:
        """Everybody's head for each participant: rows on the simplex (participants, participants).

        moments: h (participants, classes, width); variance: V (participants,). Row i is the a that minimises
        |h_i - sum_j a_j h_j|^2 + sum_j a_j^2 V_j, where that can be found, else i's own head.
        """
        h = moments.flatten(1).double()
        h = h - h.mean(0)  # only differences count
        gram = h @ h.T
        mixtures, residual = simplex_minima(gram + torch.diag(variance.double().clamp_min(0)), gram)
        mixtures = torch.where(mixtures < SMALLEST, 0.0, mixtures)
        own = torch.eye(len(h), dtype=h.dtype, device=h.device)
        return torch.where(residual.unsqueeze(1) <= RESIDUAL, mixtures / mixtures.sum(1, keepdim=True), own)


def _measure(local: Local, params: Params) -> tuple[Tensor, Tensor, Tensor]:
    """Mean features (classes, width) and examples (classes,) of every class; features' mean squared length."""
    x, y = local.work.examples("train")
    z = features(local.net, params, x)
    classes = len(local.message.extra["known"])
    return class_means(z, y, classes), class_counts(y, classes).to(z), z.double().square().sum(1).mean()


def _targets(local: Local, means: Tensor) -> Tensor | None:
    """Class means (classes, width) of all where they are known, else the client's own; none before the first round.

    Nor for a client that shares no layer of the body: its features are not comparable to the others'.
    """
    centroids, known = local.message.extra["centroids"], local.message.extra["known"]
    body = tree.under(local.message.shared, "body.*")
    return torch.where(known.unsqueeze(1), centroids, means) if body and known.any() else None
