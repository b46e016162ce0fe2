"""FedALA: training starts from a learned mixture of what was received and what the client had."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedlag import check, tree
from fedlag.algorithm import Algorithm, Finish
from fedlag.flow import Batch, Local
from fedlag.tree import Params, Tree

WINDOW = 10  # the first time, the weights have settled when the losses of so many passes
SETTLED = 0.1  # deviate by less than this


@dataclass(frozen=True, kw_only=True)
class FedALA(Algorithm):
    """FedALA: Adaptive Local Aggregation for Personalized Federated Learning (Zhang et al., AAAI 2023).

    In the layers nearest the output a client starts from old + (received - old) * W, elementwise, where W in [0, 1] is
    learned on a part of its examples before it trains. That start is also the model it uses.
    """

    layers: int = 1  # p: how many layers are mixed, counted from the output
    share: float = 0.8  # s: of the client's examples, to learn W on
    weight_lr: float = 1.0
    passes: int = 50  # over that share until W settles the first time; afterwards one

    keeps: ClassVar[str] = "*"

    def __post_init__(self) -> None:
        check.count("layers", self.layers)
        check.portion("share", self.share)
        check.not_negative("weight_lr", self.weight_lr)
        check.count("passes", self.passes, least=1)

    def remember_client(self, params: Params) -> Tree:
        return {"weights": {}}

    def prepare(self, local: Local) -> Tree:
        names = self._names(local) if local.client.round >= 0 else []
        weights = self._learned(local, names) if names else {}
        return {"start": {**local.start, **_mixed(local, weights)}, "weights": weights}

    def receive(self, local: Local) -> Params:
        start: Params = local.notes["start"]
        return start

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        return Finish({"weights": {**local.client.memory["weights"], **local.notes["weights"]}}, {})

    def personalize(self, local: Local) -> Params:
        return super().personalize(local._replace(start=self.prepare(local)["start"]))

    def _names(self, local: Local) -> list[str]:
        """What is mixed: the received parameters of the last layers."""
        modules = list(dict.fromkeys(_module(name) for name in local.net.parameter_names))
        last = modules[max(0, len(modules) - self.layers) :]
        return [name for name in local.net.parameter_names if _module(name) in last and name in local.message.shared]

    def _learned(self, local: Local, names: list[str]) -> Params:
        """W after descending on the loss of the mixture, in evaluation mode: nothing but W moves."""
        known = local.client.memory["weights"]
        weights = {name: known.get(name, torch.ones_like(local.start[name])) for name in names}
        batches, losses = self._batches(local), list[float]()
        with local.net.evaluating():
            for _ in range(1 if weights.keys() <= known.keys() else self.passes):
                weights, loss = self._pass(local, weights, batches)
                losses.append(loss)
                if len(losses) > WINDOW and torch.tensor(losses[-WINDOW:]).std(correction=0) < SETTLED:
                    break
        return weights

    def _pass(self, local: Local, weights: Params, batches: list[Batch]) -> tuple[Params, float]:
        """W after one step for every batch, and the mean loss on the way."""
        gap = tree.sub(tree.select(local.start, weights), local.client.params)
        losses = []

        def loss(mixture: Params, batch: Batch) -> Tensor:
            params = {**local.start, **tree.select(mixture, gap)}
            losses.append(functional.cross_entropy(self.predict(local, params, batch.x), batch.y))
            return losses[-1]

        for batch in batches:
            slopes, _ = local.grad(partial(loss, batch=batch))({**local.start, **_mixed(local, weights)})
            weights = tree.map(lambda w, slope, g: (w - self.weight_lr * slope * g).clamp(0, 1), weights, slopes, gap)
        return weights, float(torch.stack(losses).detach().mean())

    def _batches(self, local: Local) -> list[Batch]:
        """The client's share of examples, in the same batches for every pass."""
        count = len(local.work.examples("train").y)
        x, y = next(local.work.stream("mixing").batches(count, 1))
        part = max(1, int(self.share * count))
        size = local.training.batch
        return list(map(Batch, torch.split(x[:part], size), torch.split(y[:part], size)))


def _mixed(local: Local, weights: Params) -> Params:
    """Exactly what was received where W is 1, exactly the old value where it is 0."""
    return {name: torch.lerp(local.client.params[name], local.start[name], w) for name, w in weights.items()}


def _module(name: str) -> str:
    return name.rpartition(".")[0]
