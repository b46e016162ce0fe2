"""FedAS: align the received body with the client's own, and trust clients by their Fisher information."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from fedlag import check
from fedlag.aggregate import Aggregator, Reported
from fedlag.algorithm import Algorithm, Finish, Phase
from fedlag.flow import Batch, Local
from fedlag.optim import SGD
from fedlag.personal import Named, Rule
from fedlag.statistics import class_means, features
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class FedAS(Algorithm):
    """FedAS: Bridging Inconsistency in Personalized Federated Learning (Yang, Huang, Ye, CVPR 2024).

    Before training, the received body is drawn toward the class means of the client's old features; heads are the
    clients' own. Clients count by the squared gradients of what they trained, and use the model they last trained.
    """

    personal: Rule = Named("head.*")
    aggregator: Aggregator = Reported(key="fisher")
    alignment_epochs: int = 1
    alignment_lr: float = 0.01
    align_newcomers: bool = False  # the authors do, toward class means of the untrained initial body

    keeps: ClassVar[str] = "*"

    def __post_init__(self) -> None:
        check.count("alignment_epochs", self.alignment_epochs)
        check.positive("alignment_lr", self.alignment_lr)

    def receive(self, local: Local) -> Params:
        known = local.client.round >= 0
        body = [name for name in local.message.shared if name.startswith("body.")]
        if not body or not (known or self.align_newcomers):
            return local.start
        targets = _class_means(local, local.client.params if known else local.net.init())
        phase = Phase(self.alignment_epochs, " ".join(body), SGD(lr=self.alignment_lr))
        aligned, _ = local.fit(local.start, (phase,), purpose="align", loss=partial(_distance, targets))
        return aligned

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        return Finish(local.client.memory, {"fisher": self._fisher(local, end)})

    def personalize(self, local: Local) -> Params:
        return super().personalize(local._replace(start={**local.start, **local.client.params}))

    def _fisher(self, local: Local, params: Params) -> Tensor:
        """The trace of the empirical Fisher information: squared gradients of batch means, summed over batches."""
        total = torch.zeros((), dtype=torch.float64)
        examples, size = local.work.examples("train"), local.training.batch
        with local.net.evaluating():
            for batch in map(Batch, torch.split(examples.x, size), torch.split(examples.y, size)):
                grads, _ = local.grad(partial(self.loss, local, batch=batch))(params)
                total += sum(grad.double().square().sum() for grad in grads.values())
        return total


def _class_means(local: Local, params: Params) -> Tensor:
    """Mean features (classes, width) of this client's examples."""
    x, y = local.work.examples("train")
    return class_means(features(local.net, params, x), y, int(y.max()) + 1)


def _distance(targets: Tensor, local: Local, params: Params, batch: Batch) -> Tensor:
    """Squared distance to the class means: averaged over features and over a class's examples, summed over classes."""
    squares = (local.net.features(params, batch.x) - targets[batch.y]).square().mean(1)
    return (squares / torch.bincount(batch.y)[batch.y]).sum()
