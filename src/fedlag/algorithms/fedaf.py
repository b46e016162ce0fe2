"""FedAF: clients send condensed images, and the server trains on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedlag import check, tree
from fedlag.algorithm import Algorithm, Finish, Outcome, Phase
from fedlag.condensation import disagreement, means_of_owners, means_of_parts, resampled, sliced_gaps
from fedlag.fit import gradient
from fedlag.flow import Batch, Local, Replies, Server
from fedlag.net import Model
from fedlag.optim import SGD, Optimizer
from fedlag.randomness import seeded
from fedlag.statistics import class_counts, class_means, features
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedAF(Algorithm):
    """An Aggregation-Free Federated Learning for Tackling Data Heterogeneity (Wang et al., CVPR 2024).

    Nothing is averaged. The paper's round has two exchanges and takes two of ours: in even rounds clients tell the mean
    scores of their classes; in odd ones they learn a few images of each class that look to the network as all of them
    do and score as that class does with everybody, and the server trains on those. Sizes are a tenth of the paper's.
    """

    server: Optimizer = SGD(lr=0.01, momentum=0.9)  # trains the model on condensed images
    images: int = 10  # condensed images of a class; 50 in the paper
    blended: int = 5  # at first a condensed image is the mean of so many real ones
    image_steps: int = 100  # 1000 in the paper
    image_lr: float = 1.0
    kept: float = 0.9  # γ; of the received weights in the network that condenses, the rest is drawn anew
    collaboration: float = 0.8  # λ_loc
    matching: float = 0.8  # λ_glob
    temperature: float = 2.0  # of soft labels
    epochs: int = 50  # of the server; 500 in the paper
    batch: int = 256  # of the server
    recall: bool = True  # the server trains on every client's last images, not only on this round's
    seed: int = 0  # of the server's shuffles

    averages: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name in ("images", "blended", "batch"):
            check.count(name, getattr(self, name), least=1)
        for name in ("image_steps", "epochs", "seed"):
            check.count(name, getattr(self, name))
        for name in ("image_lr", "temperature"):
            check.positive(name, getattr(self, name))
        for name in ("collaboration", "matching"):
            check.not_negative(name, getattr(self, name))
        check.fraction("kept", self.kept)

    def remember(self, params: Params, clients: int) -> Tree:
        """The model too, because `aggregate` is shown only what clients' updates move, and there are none."""
        return {"model": params, "condensed": {}, "goal": {}}

    def message(self, server: Server) -> Tree:
        return server.memory["goal"] if _condenses(server.round) else {}

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return ()

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        memory, (x, y) = local.client.memory, local.work.examples("train")
        both = _condenses(local.message.round) and local.client.round == local.message.round - 1
        seed = memory["seed"] if both else local.work.seed("network")  # one network for both exchanges
        network = resampled(local.net, end, self.kept, seed)
        seen = features(local.net, network, x)
        scores = local.net.classify(network, seen)
        classes = scores.shape[1]
        counts = class_counts(y, classes)
        if not _condenses(local.message.round):
            return Finish({**memory, "seed": seed}, {"means": class_means(scores, y, classes), "counts": counts})
        images = memory["images"] if "images" in memory else self._blend(local, classes)
        images = self._condense(local, network, images, class_means(seen, y, classes), counts > 0)
        soft = functional.softmax(local.net.classify(end, features(local.net, end, x)) / self.temperature, dim=1)
        extra = {"images": images, "means": class_means(soft, y, classes), "counts": counts}
        return Finish({"seed": seed, "images": images}, extra)

    def aggregate(self, server: Server, replies: Replies, net: Model) -> Outcome:
        memory = server.memory
        if not _condenses(server.round):
            return Outcome({}, server.optimizer, {**memory, "goal": means_of_owners(replies.extra)})
        arrived = {id: tree.map(lambda value, i=i: value[i].clone(), replies.extra) for i, id in enumerate(replies.ids)}
        known = {**memory["condensed"], **arrived} if self.recall else arrived
        condensed = {id: known[id] for id in sorted(known)}
        model, optimizer = self._train(net, memory["model"], server.optimizer, condensed, server.round)
        return Outcome(model, optimizer, {"model": model, "condensed": condensed, "goal": {}})

    def _blend(self, local: Local, classes: int) -> Tensor:
        """Images to begin with, (classes, images, *shape); zero where the client has none."""
        x, y = local.work.examples("train")
        generator = np.random.default_rng(local.work.seed("images"))
        images = x.new_zeros(classes, self.images, *x.shape[1:])
        for label in sorted(set(y.tolist())):
            mine = x[y == label]
            images[label] = mine[generator.integers(len(mine), size=(self.images, self.blended))].mean(1)
        return images

    def _condense(self, local: Local, network: Params, images: Tensor, real: Tensor, own: Tensor) -> Tensor:
        """Move the images of the client's `own` classes to the mean features (classes, width) of its real ones."""
        goal, learned = local.message.extra, images[own]
        with local.net.evaluating():
            for _ in range(self.image_steps):
                learned.requires_grad_()
                seen = local.net.features(network, learned.flatten(0, 1))
                scores = local.net.classify(network, seen)
                loss = (means_of_parts(seen, len(learned)) - real[own]).square().sum()
                if goal:
                    known = (goal["counts"] > 0)[own]
                    gaps = sliced_gaps(means_of_parts(scores, len(learned)), goal["means"][own])
                    loss = loss + self.collaboration * gaps[known].sum()
                (gradient,) = torch.autograd.grad(loss, learned)
                learned = learned.detach() - self.image_lr * gradient
        return images.index_put((own,), learned)

    def _train(self, net: Model, params: Params, state: Tree, condensed: Tree, round: int) -> tuple[Params, Tree]:
        """Train the model on condensed images, towards clients' soft labels."""
        told = {key: torch.stack([one[key] for one in condensed.values()]) for key in ("images", "means", "counts")}
        owned = told["counts"] > 0
        x, y = told["images"][owned].flatten(0, 1), owned.nonzero()[:, 1].repeat_interleave(self.images)
        labels = means_of_owners(told)
        generator = np.random.default_rng([self.seed, round])
        with seeded(int(generator.integers(2**63))):  # for dropout and the like
            for _ in range(self.epochs):
                for rows in torch.split(torch.from_numpy(generator.permutation(len(y))), self.batch):
                    grads, moved = self._gradient(net, params, Batch(x[rows], y[rows]), labels)
                    params, state = self.server.step({**params, **moved}, grads, state)
        return params, state

    def _gradient(self, net: Model, params: Params, batch: Batch, labels: Tree) -> tuple[Params, Params]:
        """Gradients, and statistics as the batch moved them."""
        moving = net.statistic_names if len(batch.y) > 1 else ()  # one example has no variance

        def loss(params: Params) -> Tensor:
            scores = net(params, batch.x)
            classes = scores.shape[1]
            soft = class_means(functional.softmax(scores / self.temperature, dim=1), batch.y, classes)
            known = (labels["counts"] > 0) & (class_counts(batch.y, classes) > 0)
            apart = disagreement(labels["means"][known], soft[known])
            return functional.cross_entropy(scores, batch.y) + self.matching * apart

        net.train([*net.parameter_names, *moving])
        return gradient(net.parameter_names, moving, loss)(params)


def _condenses(round: int) -> bool:
    return round % 2 == 1
