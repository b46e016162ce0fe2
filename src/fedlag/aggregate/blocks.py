"""Updates looked at all together or coordinate by coordinate, in blocks that bound what is needed besides them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from fedlag import divergence, tree
from fedlag.divergence import CHUNK
from fedlag.tree import Params

SCOPES = ("model", "layer")


def recombine(update: Mapping[str, Tensor], scope: str, coefficients: Callable[[Tensor], Tensor]) -> Params:
    """Clients' updates summed with coefficients (clients,) read off their inner products (clients, clients), float64.

    scope: "model" looks at all updates as one vector, "layer" at every module's apart.
    """
    made: Params = {}
    for names in _parts(update, scope):
        part = tree.select(update, names)
        made |= tree.mean(part, coefficients(divergence.gram(columns(part))))
    return made


def columns(update: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """All names side by side, in blocks (clients, at most CHUNK) of float64."""
    for value in update.values():
        for block in torch.split(value.reshape(len(value), -1), CHUNK, dim=1):
            yield block.double()


def by_coordinate(function: Callable[[Tensor], Tensor], stacked: Tensor) -> Tensor:
    """What `function` makes of every block (clients, n), which is of shape (n,), put together as one update."""
    blocks = torch.split(stacked.reshape(len(stacked), -1), CHUNK, dim=1)
    return torch.cat([function(block) for block in blocks]).reshape(stacked.shape[1:])


def ascending(values: Tensor) -> Tensor:
    """Values (clients, n) in ascending order over clients. Many times faster than PyTorch, which also tells whose."""
    columns = np.array(values.T.numpy(force=True), order="C")
    columns.sort(axis=1)
    return torch.from_numpy(columns).to(values.device).T


def headcount(share: float, clients: int) -> int:
    """So many of the clients are a share of them, rounded down."""
    return int(share * clients + 1e-9)  # 0.29 * 100 is a little less than 29


def _parts(update: Mapping[str, Tensor], scope: str) -> list[list[str]]:
    parts: dict[str, list[str]] = {}
    for name in update:
        parts.setdefault(name.rpartition(".")[0] if scope == "layer" else "", []).append(name)
    return list(parts.values())
