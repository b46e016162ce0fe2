"""What the lemma predicts of keeping a layer instead of averaging it, and what happens to the loss when one does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedlag import divergence, layers, run, tree
from fedlag.errors import InputError
from fedlag.federation.observed import Observed
from fedlag.federation.sequential import Sequential
from fedlag.federation.work import Source
from fedlag.flow import Batch, Message, Reply, Server
from fedlag.layers import Layer, Unit
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Nothing
from fedlag.round import Task
from fedlag.tree import Params

BATCH = 1000


class Kept(NamedTuple):
    """One layer after one round: everybody's own in place of the mean of all, everything else averaged."""

    round: int
    layer: str
    conflicts: int
    pairs: int
    predicted: (
        float  # change of the mean training loss, to first order: minus the updates' variance over rate and steps
    )
    measured: float  # the same as it is
    helped: float  # share of the clients whose loss is lower with their own


class Agreement(NamedTuple):
    """How well the prediction holds over many layers and rounds."""

    cases: int
    lowered: float  # share of the cases in which the mean loss is lower with everybody's own layer
    factor: float  # median of measured over predicted
    order: float  # rank correlation of predicted and measured change
    conflict_order: float  # rank correlation of the share of conflicting pairs and how far the loss is lowered
    helped: float  # mean share of clients whose loss is lower


def keep_or_average(
    task: Task, server: Server, source: Source, seed: int, rounds: int, every: int = 1, unit: Unit = "module"
) -> list[Kept]:
    """Train as the task says, with everybody in every round and nothing personal; look at every so many rounds."""
    optimizer = task.training.optimizer
    if not isinstance(optimizer, SGD) or optimizer.momentum or optimizer.weight_decay:
        raise InputError(f"The prediction is for plain SGD, not for {optimizer}; leave momentum and weight decay out.")
    if not isinstance(task.algorithm.personal, Nothing):
        raise InputError(
            f"The layers compared must be averaged, but {task.algorithm.personal} keeps some; leave it out."
        )
    candidates = layers.group(task.anatomy, unit)
    federation = Observed(Sequential(task, source, seed))
    found: list[Kept] = []
    for done in islice(run.rounds(task, server, federation, run.Sampling(), seed), rounds):
        if done.number % every == 0:
            rate = optimizer.slowed(task.training.decay**done.number).lr
            found += _look(task, done.message, federation.replies, source, candidates, rate)
    return found


def agreement(cases: Sequence[Kept]) -> Agreement:
    predicted, measured = (np.array([getattr(case, name) for case in cases]) for name in ("predicted", "measured"))
    conflicts = np.array([case.conflicts / case.pairs for case in cases])
    return Agreement(
        cases=len(cases),
        lowered=float((measured < 0).mean()),
        factor=float(np.median(measured / predicted)),
        order=_rank_correlation(predicted, measured),
        conflict_order=_rank_correlation(conflicts, -measured),
        helped=float(np.mean([case.helped for case in cases])),
    )


def _look(
    task: Task,
    message: Message,
    replies: dict[int, Reply],
    source: Source,
    candidates: Sequence[Layer],
    rate: float,
) -> Iterator[Kept]:
    clients = sorted(replies)
    updates = {name: torch.stack([replies[client].update[name] for client in clients]) for name in message.shared}
    mean = {name: message.shared[name] + update.mean(0) for name, update in updates.items()}
    own = [
        {name: message.shared[name] + update[place] for name, update in updates.items()}
        for place in range(len(clients))
    ]
    steps = torch.tensor([replies[client].steps for client in clients], dtype=torch.float64)

    def losses(models: Iterable[Params]) -> Tensor:
        found = [_loss(task.model, params, source(id, "train")) for id, params in zip(clients, models, strict=False)]
        return torch.tensor(found, dtype=torch.float64)

    averaged = losses(repeat(mean))
    for layer in candidates:
        seen = divergence.conflict(divergence.gram(updates[name] for name in layer.scored))
        change = losses({**mean, **tree.select(params, layer.names)} for params in own) - averaged
        predicted = -(seen.client_improvement / (rate * steps)).mean()
        helped = (change < 0).double().mean()
        yield Kept(
            message.round + 1, layer.name, seen.count, seen.pairs, float(predicted), float(change.mean()), float(helped)
        )


def _loss(model: Model, params: Params, examples: Batch) -> float:
    """Mean cross-entropy, in double precision because differences of it are what counts."""
    with model.evaluating(), torch.no_grad():
        parts = zip(torch.split(examples.x, BATCH), torch.split(examples.y, BATCH), strict=True)
        sums = [functional.cross_entropy(model(params, x).double(), y, reduction="sum") for x, y in parts]
    return float(torch.stack(sums).sum()) / len(examples.y)


def _rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Spearman's; not a number where one of them never changes."""
    one, other = _ranks(a), _ranks(b)
    return float(np.corrcoef(one, other)[0, 1]) if np.ptp(one) and np.ptp(other) else math.nan


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Equal values share the mean of their ranks."""
    ordered = np.sort(values)
    before, after = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return (before + after) / 2
