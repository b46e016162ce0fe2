"""Many clients' training on a dense model at once: every step is one for all who still have one to take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedlag import tree
from fedlag.algorithm import Algorithm, Phase
from fedlag.federation.dense import Dense, Slope
from fedlag.federation.plan import Plan, plan
from fedlag.federation.stacked import Apart, Locals, for_all
from fedlag.flow import Batch, Local
from fedlag.optim import SGD, Optimizer
from fedlag.round import Task
from fedlag.tree import Params

BLOCK = 8  # steps whose examples are gathered at once: few enough to be in the cache still when they are used

Correct = Callable[[Params, Params, int], Params]  # stacked parameters and gradients, number of the step -> gradients


def fit_dense(
    task: Task, dense: Dense, locals: Sequence[Local], starts: Sequence[Params], phases: Sequence[Phase], purpose: str
) -> list[tuple[Params, int]]:
    """What `fit` gives each of these clients, who come in the order of how many examples they have, most first."""
    training = task.training
    streams = [local.work.stream(purpose) for local in locals]
    params = tree.stack(starts)
    taken = [0] * len(locals)
    for phase in phases:
        plans = [plan(stream, training.batch, phase.epochs) for stream in streams]
        names = frozenset(name for name in task.trained if tree.matches(name, phase.pattern))
        optimizer = (phase.optimizer or training.optimizer).slowed(training.decay ** locals[0].message.round)
        if names:
            correct = _corrector(task.algorithm, locals, optimizer, taken)
            with torch.no_grad():
                _train(dense, params, [stream.examples for stream in streams], plans, names, optimizer, correct)
        taken = [steps + len(one.rows) for steps, one in zip(taken, plans, strict=True)]
    ends = [dict(zip(params, values, strict=True)) for values in zip(*params.values(), strict=True)]
    return list(zip(ends, taken, strict=True))


def _train(
    dense: Dense,
    params: Params,
    examples: Sequence[Batch],
    plans: Sequence[Plan],
    names: frozenset[str],
    optimizer: Optimizer,
    correct: Correct | None,
) -> None:
    """One phase; `params` are stacked, and changed."""
    clients, now, state = len(plans), params, optimizer.init(tree.select(params, names))
    for number, (x, shares, targets) in enumerate(_batches(examples, plans, params[dense.layers[-1].weight][:, :, 0])):
        if x.shape[0] < clients:
            clients = x.shape[0]
            _put(params, now)
            now, state = tree.first(now, clients), tree.first(state, clients)
        outputs = dense.outputs(now, x)
        slopes = dense.slopes(now, outputs, outputs[-1].softmax(2).mul_(shares).sub_(targets), names)
        inputs = [x, *outputs]
        if isinstance(optimizer, SGD) and not optimizer.momentum and correct is None:
            _descend(now, inputs, slopes, names, optimizer)
        else:
            grads: Params = {}
            for layer, place, slope in slopes:
                grads |= {layer.weight: torch.bmm(slope.mT, inputs[place])} if layer.weight in names else {}
                grads |= {layer.bias: slope.sum(1)} if layer.bias in names else {}
            grads = correct(now, grads, number) if correct else grads
            now, state = optimizer.step(now, grads, state)
    _put(params, now)


def _descend(
    params: Params, inputs: Sequence[Tensor], slopes: Iterator[Slope], names: frozenset[str], optimizer: SGD
) -> None:
    """A step of plain SGD in place, without gradients ever standing anywhere."""
    keep = 1 - optimizer.lr * optimizer.weight_decay
    for layer, place, slope in slopes:
        if layer.weight in names:
            params[layer.weight].baddbmm_(slope.mT, inputs[place], beta=keep, alpha=-optimizer.lr)
        if layer.bias in names:
            bias = params[layer.bias] if keep == 1 else params[layer.bias].mul_(keep)
            bias.sub_(slope.sum(1), alpha=optimizer.lr)


def _batches(examples: Sequence[Batch], plans: Sequence[Plan], like: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Step after step, for all clients that take it: x (clients, batch, inputs); every example's share in the mean over
    its batch (clients, batch, 1); and that share in the place of its class (clients, batch, classes).

    like: (clients, classes), of the type of the parameters.
    """
    steps = [len(one.rows) for one in plans]
    batch = plans[0].rows.shape[1]
    sizes = pad_sequence([one.sizes for one in plans], batch_first=True).unsqueeze(2)
    shares = torch.where(torch.arange(batch) < sizes, 1 / sizes.to(like.dtype), 0).unsqueeze(3)
    labels = [y[one.rows] for (_, y), one in zip(examples, plans, strict=True)]
    y = pad_sequence(labels, batch_first=True).unsqueeze(3)
    flat = [x.flatten(1) for x, _ in examples]
    x = like.new_empty(len(plans), BLOCK * batch, flat[0].shape[1])
    for first in range(0, steps[0], BLOCK):
        block = slice(first, first + BLOCK)
        for client, (pixels, one) in enumerate(zip(flat, plans, strict=True)):
            rows = one.rows[block].flatten()
            torch.index_select(pixels, 0, rows, out=x[client, : len(rows)])
        targets = like.new_zeros(*y[:, block].shape[:3], like.shape[1]).scatter_(3, y[:, block], shares[:, block])
        each = torch.split(x, batch, 1), shares[:, block].unbind(1), targets.unbind(1)
        for number, batches in enumerate(zip(*each, strict=False), first):  # x has room for more steps than may be left
            taking = sum(count > number for count in steps)
            yield batches[0][:taking], batches[1][:taking], batches[2][:taking]


def _put(all: Params, some: Params) -> None:
    """Write the values of the first clients in place."""
    for name, value in some.items():
        if value.data_ptr() != all[name].data_ptr():
            all[name][: len(value)] = value


def _corrector(
    algorithm: Algorithm, locals: Sequence[Local], optimizer: Optimizer, taken: Sequence[int]
) -> Correct | None:
    """The algorithm's `correct` for stacked parameters; None where there is nothing to correct."""
    if type(algorithm).correct is Algorithm.correct:
        return None
    stacked = Locals(locals)

    def correct(params: Params, grads: Params, number: int) -> Params:
        at = taken[0] + number if len(set(taken)) == 1 else Apart("its number of steps")

        def one(tensors: list[Tensor], params: Params, grads: Params) -> Params:
            return algorithm.correct(stacked.local(tensors, number=at, optimizer=optimizer), params, grads)

        count = len(next(iter(params.values())))
        corrected: Params = for_all(one, [tensor[:count] for tensor in stacked.tensors], params, grads)
        return corrected

    return correct
