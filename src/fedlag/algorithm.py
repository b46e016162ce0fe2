"""The questions a round asks, each with FedAvg's answer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedlag import check, tree
from fedlag.aggregate import Aggregator, Mean
from fedlag.flow import Batch, Local, Replies, Server
from fedlag.net import Model
from fedlag.optim import SGD, Optimizer
from fedlag.personal import Nothing, Rule
from fedlag.tree import Params, Tree

PRECISIONS = ("fp32", "bf16")


class Steps(int):
    """A number of steps where a number of epochs may stand."""


@dataclass(frozen=True)
class Phase:
    """One stretch of local training: how long, and which parameters move."""

    epochs: int
    pattern: str = "*"
    optimizer: Optimizer | None = None  # the training's own where none is given


@dataclass(frozen=True, kw_only=True)
class Training:
    """How clients train: plain SGD unless an algorithm says otherwise."""

    epochs: int = 1
    steps: int | None = None  # this many steps instead of whole epochs
    batch: int = 16
    optimizer: Optimizer = SGD()
    decay: float = 1.0  # the learning rate is multiplied by this after every round
    precision: str = "fp32"  # "bf16": products in training are taken in bfloat16; weights and scores stay in float32

    def __post_init__(self) -> None:
        check.count("training.epochs", self.epochs)
        if self.steps is not None:
            check.count("training.steps", self.steps)
        check.count("training.batch", self.batch, least=1)
        check.positive("training.decay", self.decay)
        check.one_of("training.precision", self.precision, PRECISIONS)

    @property
    def length(self) -> int:
        return self.epochs if self.steps is None else Steps(self.steps)

    def forward(self) -> AbstractContextManager[None]:
        """The context in which losses are computed while training."""
        if self.precision == "fp32":
            return nullcontext()
        # Without a cache: every weight is used once, and then it is another one.
        return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)


class Extension(NamedTuple):
    """Parameters an algorithm adds to the model: trained ones, and values no gradient moves."""

    trained: Params
    carried: Params


class Finish(NamedTuple):
    """What a client ends a round with."""

    memory: Tree
    extra: Tree  # what it tells the server besides its update
    contribution: Params | None = None  # what it gives to the average, where that is not simply where training ended


class Outcome(NamedTuple):
    """What an aggregation returns."""

    params: Params
    optimizer: Tree
    memory: Tree


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A federated method. Override the first of these that says what the paper says:

    a field's value; then `loss`, `correct`, `phases`, `step`; then `message`, `letter`, `remember`, `remember_client`,
    `prepare`, `finish`; `receive`, `aggregate`, `deployed`, `personalize`, `predict` last. Every method is pure.
    """

    personal: Rule = Nothing()
    aggregator: Aggregator = Mean()
    server: Optimizer = SGD(lr=1.0)
    tune: tuple[Phase, ...] = ()  # trained before evaluation, then thrown away

    averages: ClassVar[str] = "*"  # names the server averages: what clients report, and what a rule may choose among
    keeps: ClassVar[str] = ""  # names a client keeps after training beyond what may be personal
    opens_with_all: ClassVar[bool] = False  # every client takes part in the first round
    pooled: ClassVar[bool] = False  # one participant trains on everybody's examples

    # Before the first round

    def extend(self, net: Model, params: Params, seed: int) -> Extension:
        """Parameters beyond the model's: a second head, a personal copy."""
        return Extension({}, {})

    def remember(self, params: Params, clients: int) -> Tree:
        """What the server remembers besides the model."""
        return {}

    def remember_client(self, params: Params) -> Tree:
        """What a client remembers when it is born."""
        return {}

    # What is sent

    def message(self, server: Server) -> Tree:
        """What every participant is told besides the shared parameters."""
        return {}

    def letter(self, server: Server, client: int) -> Tree:
        """What only this participant is told."""
        return {}

    # On the client

    def prepare(self, local: Local) -> Tree:
        """What the client works out before it trains; the methods below find it in `local.notes`."""
        return {}

    def receive(self, local: Local) -> Params:
        """Where training starts, from shared as received and personal as kept (`local.start`)."""
        return local.start

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(epochs),)

    def loss(self, local: Local, params: Params, batch: Batch) -> Tensor:
        return functional.cross_entropy(self.predict(local, params, batch.x), batch.y)

    def correct(self, local: Local, params: Params, grads: Params) -> Params:
        """Gradients as the optimiser should see them."""
        return grads

    def step(self, local: Local, params: Params, state: Tree, batch: Batch) -> tuple[Params, Tree]:
        """One step of local training; `state` is the optimiser's."""
        grads, moved = local.grad(lambda p: self.loss(local, p, batch))(params)
        params, state = local.optimizer.step({**params, **moved}, self.correct(local, params, grads), state)
        return params, state

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        """What the client remembers and tells the server, having trained to `end` in so many steps."""
        return Finish(local.client.memory, {})

    # On the server

    def aggregate(self, server: Server, replies: Replies, net: Model) -> Outcome:
        """The next model; both arguments hold only what is shared before and after this round."""
        update = self.aggregator(replies)
        params, optimizer = self.server.step(server.params, tree.scale(update, -1.0), server.optimizer)
        return Outcome(params, optimizer, server.memory)

    # At evaluation

    def deployed(self, server: Server) -> Params:
        """The server's parameters as clients would use them; training goes on from `server.params`."""
        return server.params

    def personalize(self, local: Local) -> Params:
        """The model this client would use."""
        params, _ = local.fit(local.start, self.tune, purpose="tune")
        return params

    def predict(self, local: Local, params: Params, x: Tensor) -> Tensor:
        """Class scores (examples, classes)."""
        return local.net(params, x)
