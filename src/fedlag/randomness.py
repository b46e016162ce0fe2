"""PyTorch's own generator, from which dropout and initial weights are drawn: one user at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedlag.net import Model

_turn = threading.RLock()  # there is one generator in a process, whatever the number of threads


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Whatever is drawn within depends on the seed alone and disturbs no other stream; other threads wait."""
    with _turn:
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would queue a call for absent devices
        try:
            yield
        finally:
            torch.set_rng_state(before)


def draws(model: Model, x: torch.Tensor) -> bool:
    """Whether the model draws random numbers while it trains on examples like these, as dropout does."""
    params = model.init()
    with seeded(0), torch.no_grad():
        before = torch.get_rng_state()
        model.train(model.parameter_names)  # no statistics: two examples would move them
        model(params, x)
        return not torch.equal(before, torch.get_rng_state())
