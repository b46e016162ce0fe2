"""Local training: phases, batches, steps. The hot loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedlag import tree
from fedlag.algorithm import Algorithm, Phase
from fedlag.flow import Batch, Local
from fedlag.optim.sgd import SGD, InPlace
from fedlag.tree import Params

if TYPE_CHECKING:
    from fedlag.round import Task

Fit = Callable[..., tuple[Params, int]]  # with the arguments of `fit`


def fit(
    task: Task,
    local: Local,
    params: Params,
    phases: Sequence[Phase],
    purpose: str,
    loss: Callable[[Local, Params, Batch], Tensor] | None = None,
) -> tuple[Params, int]:
    """Train through the phases on the shuffled batches kept for `purpose`; returns parameters and steps taken.

    With a `loss` of its own, plain steps along its gradient; else the algorithm's step.
    """
    algorithm, training = task.algorithm, task.training
    stream, steps = local.work.stream(purpose), 0
    overwrites = loss is not None or type(algorithm).step is Algorithm.step  # steps that nobody else may look back on
    for phase in phases:
        names = [name for name in task.trained if name in params and tree.matches(name, phase.pattern)]
        moving = [name for name in task.carried if name in params and tree.matches(name, phase.pattern)]
        optimizer = (phase.optimizer or training.optimizer).slowed(training.decay**local.message.round)
        state = optimizer.init(tree.select(params, names))
        if overwrites and type(optimizer) is SGD:
            params = {**params, **tree.map(torch.clone, tree.select(params, names))}
            optimizer = InPlace.like(optimizer)
        grad = partial(gradient, names, moving, forward=training.forward)
        within = local._replace(grad=grad, optimizer=optimizer, fit=not_ready)
        for batch in stream.batches(training.batch, phase.epochs):
            task.model.train(names if len(batch.y) == 1 else [*names, *moving])  # one example has no variance
            within = within._replace(number=steps)
            if loss is None:
                params, state = algorithm.step(within, params, state, batch)
            else:
                grads, moved = within.grad(lambda p, b=batch, w=within: loss(w, p, b))(params)  # type: ignore[misc]
                params, state = optimizer.step({**params, **moved}, grads, state)
            steps += 1
    return params, steps


def gradient(
    names: Sequence[str],
    moving: Sequence[str],
    f: Callable[[Params], Tensor],
    forward: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[[Params], tuple[Params, Params]]:
    """Gradients of f for `names`, and the `moving` entries as f left them. `forward` is the context f is run in."""

    def of(params: Params) -> tuple[Params, Params]:
        variables = {name: params[name].detach().requires_grad_() for name in names}
        moved = {name: params[name].clone() for name in moving}
        with forward():
            value = f({**params, **variables, **moved})
        grads = torch.autograd.grad(value, list(variables.values()), materialize_grads=True)
        return dict(zip(names, grads, strict=True)), moved

    return of


def not_ready(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("local.fit does not exist while fitting")
