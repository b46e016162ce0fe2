"""PyTorch's own generators, from which dropout and initial weights are drawn: one user at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedlag.net import Model

_turn = threading.RLock()  # there is one generator for a device in a process, whatever the number of threads


def generators() -> tuple[torch.Generator, ...]:
    """PyTorch's own: the processor's, and that of every GPU in use."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return (torch.default_generator, *(torch.cuda.default_generators if in_use else ()))


def states() -> list[torch.Tensor]:
    return [generator.get_state() for generator in generators()]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever is drawn within, who draws afterwards in this thread doesn't notice."""
    before = states()
    try:
        yield
    finally:
        for generator, state in zip(generators(), before, strict=False):  # a GPU may have come into use
            generator.set_state(state)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Whatever is drawn within depends on the seed alone and disturbs no other stream; other threads wait."""
    with _turn, undisturbed():
        for generator in generators():
            generator.manual_seed(seed)  # torch.manual_seed would queue a call for absent devices
        yield


def draws(model: Model, x: torch.Tensor) -> bool:
    """Whether the model draws random numbers while it trains on examples like these, as dropout does."""
    params = model.init()
    with seeded(0), torch.no_grad():
        before = states()
        model.train(model.parameter_names)  # no statistics: two examples would move them
        model(params, x)
        return not all(map(torch.equal, before, states()))
