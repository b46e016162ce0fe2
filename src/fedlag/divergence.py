"""How far clients' updates disagree, layer by layer.

Everything here is read off one matrix per layer: G = H Hᵀ, the inner products of the clients' updates H
(clients, size). Needs nothing but torch, so updates of any framework can be judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedlag.errors import InputError
from fedlag.kernels import fast_products

CHUNK = 16_384  # columns multiplied at once
CACHED = 2**21  # numbers that are quick to read wherever they lie
PANEL = 64  # clients whose products with all later ones are taken at once; those with earlier ones are known by then

Block = Tensor | Sequence[Tensor]
"""Updates (clients, *shape) of a layer or a part of it; or one tensor of the same shape for each client."""

STILL = 1e-12  # a client whose update is no longer than this did not move, and conflicts with nobody


class Conflict(NamedTuple):
    """What the updates of one layer say about each other. `u`, `v` are clients, `h` their updates."""

    gram: Tensor  # (clients, clients), <h_u, h_v>
    cosines: Tensor  # (clients, clients); zero beside a client that did not move
    count: int  # type: ignore[assignment]  # pairs u < v with cosine < xi (hides tuple.count, which nobody needs here)
    pairs: int  # all pairs u < v
    mean_cosine: float  # over the pairs; zero if there are none
    norm: float  # root mean square of the clients' |h_u|
    improvement: float  # mean of |h_u - mean h|²; never negative, conflict or not
    client_improvement: Tensor  # (clients,), |h_u|² - <h_u, mean h>; either sign, mean equal to `improvement`


def analyze(updates: Mapping[str, Tensor | Iterable[Block]], xi: float = 0.0) -> dict[str, Conflict]:
    """Conflicts of every layer.

    updates: layer -> the clients' updates (clients, *shape), or an iterable of blocks that together are the layer. A
    block is such a tensor, or a list with one tensor for each client. Of an iterable no more than a block is held.
    xi: a pair of clients conflicts if its cosine is below this; -1 < xi <= 0.
    """
    return {name: conflict(_layer_gram(name, layer), xi) for name, layer in updates.items()}


def rank(conflicts: Mapping[str, Conflict]) -> list[str]:
    """Layers in FedLAG's order: most conflicting pairs first, then the lower mean cosine, then as given."""
    return sorted(conflicts, key=lambda name: (-conflicts[name].count, conflicts[name].mean_cosine))


def conflict(gram: Tensor, xi: float = 0.0) -> Conflict:
    """What one layer's Gram matrix says; `xi` as in `analyze`."""
    clients = len(gram)
    pairs = clients * (clients - 1) // 2
    cosine = cosines(gram)
    return Conflict(
        gram=gram,
        cosines=cosine,
        count=int(_conflicting(cosine, xi).sum()),
        pairs=pairs,
        mean_cosine=float(cosine.triu(1).sum()) / max(pairs, 1),
        norm=float(gram.diagonal().mean().sqrt()),
        improvement=improvement(gram),
        client_improvement=gram.diagonal() - gram.mean(1),
    )


@torch.no_grad()
def gram(blocks: Iterable[Block]) -> Tensor:
    """Inner products of the clients' updates, (clients, clients) in float64, summed over the blocks.

    blocks: of any floating dtype and sizes, with the same clients in the same order.
    Products are taken in float32 (relative error about 1e-6), or in float64 for blocks of float64.
    """
    total: Tensor | None = None
    for product in map(_block_gram, blocks):  # map lets go of a block before asking for the next
        if total is None:
            total = product
        elif len(total) == len(product):
            total += product
        else:
            raise InputError(
                f"one block of updates has {len(total)} clients and another {len(product)}; "
                "every block must have a row for each client."
            )
    if total is None:
        raise InputError("there are no updates; give at least one block of shape (clients, …).")
    broken = (~total.diagonal().isfinite()).nonzero().flatten().tolist()
    if broken:
        raise InputError(
            f"the updates of client {', '.join(map(str, broken))} (counted from 0) are not finite: "
            "NaN, infinite or too large to square; leave such clients out."
        )
    return total


def cosines(gram: Tensor) -> Tensor:
    """Cosine between every two clients' updates, (clients, clients); zero where either did not move."""
    norms = gram.diagonal().sqrt()
    moved = norms > STILL
    return torch.where(torch.outer(moved, moved), gram / torch.outer(norms, norms), 0.0).clamp(-1.0, 1.0)


def leave_one_out(gram: Tensor, xi: float = 0.0) -> Tensor:
    """Conflicting pairs that remain when each client in turn is left out, (clients,) integers.

    A layer whose rank hangs on one client shows it here.
    """
    conflicting = _conflicting(cosines(gram), xi)
    return conflicting.sum() - conflicting.sum(0) - conflicting.sum(1)


def improvement(gram: Tensor, weights: Tensor | Sequence[float] | None = None) -> float:
    """Weighted variance of the updates, Σ p_u G_uu - pᵀGp.

    weights: (clients,), such as sample counts, brought to sum to one; by default all clients weigh the same.
    """
    p = torch.ones(len(gram), dtype=gram.dtype) if weights is None else torch.as_tensor(weights, dtype=gram.dtype)
    if p.shape != gram.shape[:1] or not (p >= 0).all() or not 0 < (total := float(p.sum())) < torch.inf:
        raise InputError(
            f"weights {p.tolist()} do not fit {len(gram)} clients; "
            "give each client one finite weight >= 0, and not zero to all of them."
        )
    p = p / total
    return max(0.0, float(p @ gram.diagonal() - p @ gram @ p))


def _layer_gram(name: str, updates: Tensor | Iterable[Block]) -> Tensor:
    try:
        return gram([updates] if isinstance(updates, Tensor) else updates)
    except InputError as error:
        raise InputError(f"Layer {name!r}: {error}") from error


def _block_gram(block: Block) -> Tensor:
    rows = _rows(block)
    product = _product(rows, precision(rows[0].dtype))
    # Values beyond 1e19 are finite in float32, but their squares are not.
    return product if product.isfinite().all() else _product(rows, torch.float64)


def _rows(block: Block) -> Block:
    """The block with one flat row for each client."""
    if isinstance(block, Tensor):
        if not block.is_floating_point() or block.ndim == 0 or len(block) == 0:
            raise InputError(
                f"a block of updates is {block.dtype} of shape {tuple(block.shape)}; "
                "give floating-point blocks of shape (clients, …)."
            )
        return block.reshape(len(block), -1)
    forms = {f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in block}
    if len(forms) != 1 or not block[0].is_floating_point():
        raise InputError(
            f"a block of updates lists {' and '.join(sorted(forms)) or 'no tensors'}; "
            "give one floating-point tensor for each client, all of the same kind and shape."
        )
    return [tensor.reshape(-1) for tensor in block]


def _product(rows: Block, dtype: torch.dtype) -> Tensor:
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    with fast_products():
        for columns in _columns(rows, dtype):
            for first in range(0, len(rows), PANEL):
                panel = columns[first : first + PANEL] @ columns[first:].T
                total[first : first + PANEL, first:] += panel.cpu()
    return total.triu() + total.triu(1).T


def _columns(rows: Block, dtype: torch.dtype) -> Iterator[Tensor]:
    """The rows piece by piece, (clients, at most CHUNK), brought together in one place: that is faster to multiply."""
    if isinstance(rows, Tensor) and rows.numel() <= CACHED:
        yield from (columns.to(dtype) for columns in torch.split(rows, CHUNK, dim=1))
        return
    size = len(rows[0])
    held = torch.empty(len(rows), min(CHUNK, size), dtype=dtype, device=rows[0].device)
    for start in range(0, size, CHUNK):
        columns = held[:, : size - start]
        if isinstance(rows, Tensor):
            columns.copy_(rows[:, start : start + CHUNK])
        else:
            for line, row in zip(columns, rows, strict=True):
                line.copy_(row[start : start + CHUNK])
        yield columns


def precision(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which updates of the given dtype are subtracted and multiplied."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _conflicting(cosines: Tensor, xi: float) -> Tensor:
    """Which pairs u < v conflict: (clients, clients) booleans, true only above the diagonal."""
    if not -1.0 < xi <= 0.0:
        raise InputError(f"xi is {xi}, but must be above -1 and at most 0; 0 counts every pair at an obtuse angle.")
    return (cosines < xi).triu(1)
