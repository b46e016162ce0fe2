"""Clients with losses a/2 |w - m|^2, on which methods can be worked out on paper. Every epoch is one step."""

from __future__ import annotations

from typing import Any

import torch
from laws.federations import ALL, Run, run
from torch import Tensor, nn

from fedlag.algorithm import Algorithm, Training
from fedlag.flow import Batch
from fedlag.net import Net
from fedlag.optim import SGD

LR = 0.1
CENTRES = (1.0, -2.0, 4.0)
STEEPNESS = (1.0, 3.0, 0.5)
EXAMPLES = (2, 5, 3)
JOINT = sum(a * m for a, m in zip(STEEPNESS, CENTRES, strict=True)) / sum(STEEPNESS)  # the optimum of their sum
COHORTS = ((0, 1, 2), (0, 2), (1,), (2, 1), (0, 1))
W = "head.weight"


def net() -> Net:
    """One parameter, head.weight (3, 2), in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Net(nn.Flatten(), nn.Linear(2, 3, bias=False)).double()


START = net().state_dict()[W]


def source(client: int, part: str) -> Batch:
    """Every example says where the client's bowl lies, and how steep it is."""
    x = torch.tensor([[CENTRES[client], STEEPNESS[client]]], dtype=torch.float64)
    return Batch(x.repeat(EXAMPLES[client], 1), torch.zeros(EXAMPLES[client], dtype=torch.int64))


def roll(method: type[Algorithm], steps: int = 1, number: int = 1, lr: float = LR, **settings: Any) -> Run:
    """Some rounds of the method in these bowls; `settings` are its own, `clients` and `sampling` the federation's."""

    class InBowls(method):  # type: ignore[misc,valid-type]
        def loss(self, local: Any, params: Any, batch: Batch) -> Tensor:
            centre, steepness = batch.x.mean(0)
            return steepness / 2 * ((params[W] - centre) ** 2).sum()  # type: ignore[no-any-return]

    training = Training(epochs=steps, batch=100, optimizer=SGD(lr=lr))
    setup = {name: settings.pop(name) for name in ("clients", "sampling", "wrap") if name in settings}
    setup = {"clients": 3, "sampling": ALL, **setup}
    return run(InBowls(**settings), net=net, source=source, training=training, number=number, **setup)


def slope(w: Tensor, client: int) -> Tensor:
    return STEEPNESS[client] * (w - CENTRES[client])


def near(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> bool:
    return torch.allclose(a, b, rtol=0, atol=tolerance)
