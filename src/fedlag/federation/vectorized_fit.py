"""Many clients' training at once, by any step that `torch.func.vmap` can take.

Nothing is padded. A step is one call for all clients whose batch has the same size, so that no loss, and no statistics
of normalisation, ever see an example that isn't there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedlag import tree
from fedlag.algorithm import Phase
from fedlag.federation.plan import Plan, plan
from fedlag.federation.stacked import Locals, NotTogetherError, alike, for_all, own, put_together, taken_apart
from fedlag.fit import not_ready
from fedlag.flow import Batch, Local
from fedlag.round import Task
from fedlag.tree import Params, Tree


def fit_vectorized(
    task: Task, locals: Sequence[Local], starts: Sequence[Params], phases: Sequence[Phase], purpose: str
) -> list[tuple[Params, int]]:
    """What `fit` gives each of these clients. Those whose trees have different forms train apart."""
    ends: dict[int, tuple[Params, int]] = {}
    for places in alike([(own(local)._replace(round=0), start) for local, start in zip(locals, starts, strict=True)]):
        group = Group(task, [locals[place] for place in places], [starts[place] for place in places], purpose)
        for phase in phases:
            group.train(phase)
        ends |= zip(places, group.ends(), strict=True)
    return [ends[place] for place in range(len(locals))]


class Group:
    """Clients of one form while they train."""

    def __init__(self, task: Task, locals: Sequence[Local], starts: Sequence[Params], purpose: str) -> None:
        self.task = task
        self.locals = Locals(locals)
        self.slowed = task.training.decay ** locals[0].message.round
        self.streams = [local.work.stream(purpose) for local in locals]
        examples = [stream.examples for stream in self.streams]
        self.x, self.y = (torch.cat(parts) for parts in zip(*examples, strict=True))
        self.first = [0, *accumulate(len(y) for _, y in examples)]
        self.params = tree.stack(starts)
        self.steps = [0] * len(locals)

    def ends(self) -> list[tuple[Params, int]]:
        params = (dict(zip(self.params, values, strict=True)) for values in zip(*self.params.values(), strict=True))
        return list(zip(params, self.steps, strict=True))

    def train(self, phase: Phase) -> None:
        training = self.task.training
        plans = [plan(stream, training.batch, phase.epochs) for stream in self.streams]
        own_rows = [one.rows + first for one, first in zip(plans, self.first, strict=False)]
        rows = pad_sequence(own_rows, batch_first=True).to(self.x.device)
        names = [name for name in self.task.trained if name in self.params and tree.matches(name, phase.pattern)]
        moving = [name for name in self.task.carried if name in self.params and tree.matches(name, phase.pattern)]
        optimizer = (phase.optimizer or training.optimizer).slowed(self.slowed)
        mine = [{name: self.params[name][client] for name in names} for client in range(len(plans))]
        states = States([optimizer.init(params) for params in mine])
        present = {"grad": partial(gradient, names, moving), "optimizer": optimizer, "fit": not_ready}
        for step, size, number, clients in _calls(plans, self.steps):
            self.task.model.train(names if size == 1 else [*names, *moving])  # one example has no variance
            batch = rows[clients, step, :size]
            self._step(clients, states, Batch(self.x[batch], self.y[batch]), {**present, "number": number})
        self.steps = [steps + len(one.rows) for steps, one in zip(self.steps, plans, strict=True)]

    def _step(self, clients: Sequence[int], states: States, batch: Batch, present: dict[str, Any]) -> None:
        algorithm, form = self.task.algorithm, states.forms[clients[0]]
        after = form

        def one(
            own: list[Tensor], params: Params, state: list[Tensor], x: Tensor, y: Tensor
        ) -> tuple[Params, list[Tensor]]:
            nonlocal after
            local = self.locals.local(own, **present)
            params, next_state = algorithm.step(local, params, put_together(form, state), Batch(x, y))
            tensors: list[Tensor] = []
            after = taken_apart(next_state, tensors)
            return params, tensors

        chosen = [_of(tensors, clients) for tensors in (self.locals.tensors, states.tensors)]
        params = dict(zip(self.params, _of(list(self.params.values()), clients), strict=True))
        params, tensors = for_all(one, chosen[0], params, chosen[1], *batch)
        if len(tensors) != len(states.tensors):
            raise NotTogetherError("what it carries from step to step changes its form")
        self.params = dict(zip(params, _put(list(self.params.values()), clients, list(params.values())), strict=True))
        states.tensors = _put(states.tensors, clients, tensors)
        for client in clients:
            states.forms[client] = after


class States:
    """What clients' optimisers carry from step to step: forms, and tensors (clients, ...)."""

    def __init__(self, states: Sequence[Tree]) -> None:
        tensors: list[list[Tensor]] = [[] for _ in states]
        self.forms = [taken_apart(state, into) for state, into in zip(states, tensors, strict=True)]
        self.tensors = [torch.stack(values) for values in zip(*tensors, strict=True)]


def _calls(plans: Sequence[Plan], steps: Sequence[int]) -> Iterator[tuple[int, int, int, list[int]]]:
    """Who steps together: (step of the phase, size of the batches, number of the step, clients)."""
    for step in range(max(len(one.sizes) for one in plans)):
        together: dict[tuple[int, int], list[int]] = {}
        for client, one in enumerate(plans):
            if step < len(one.sizes):
                together.setdefault((int(one.sizes[step]), steps[client] + step), []).append(client)
        for (size, number), clients in together.items():
            yield step, size, number, clients


def gradient(
    names: Sequence[str], moving: Sequence[str], f: Callable[[Params], Tensor]
) -> Callable[[Params], tuple[Params, Params]]:
    """As in `fit`, for `torch.func`."""

    def value(variables: Params, moved: Params, params: Params) -> tuple[Tensor, Params]:
        moved = tree.map(torch.clone, moved)
        return f({**params, **variables, **moved}), moved

    def of(params: Params) -> tuple[Params, Params]:
        grads, moved = torch.func.grad(value, has_aux=True)(
            {name: params[name] for name in names}, {name: params[name] for name in moving}, params
        )
        return grads, moved

    return of


def _of(tensors: Sequence[Tensor], clients: Sequence[int]) -> list[Tensor]:
    """The clients' part of tensors (clients, ...); those who have most to do come first and are soon alone."""
    count = len(clients)
    return [x[:count] if clients[-1] == count - 1 else x[list(clients)] for x in tensors]


def _put(tensors: Sequence[Tensor], clients: Sequence[int], values: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with other values for these clients."""
    if tensors and len(clients) == len(tensors[0]):
        return list(values)
    places = torch.tensor(clients)
    return [x.index_copy(0, places.to(x.device), value) for x, value in zip(tensors, values, strict=True)]
