"""Ways to divide rows among clients: pure functions of labels and a seed.

Unless said otherwise each returns one sorted array of row numbers per client; together they hold every row once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedlag.data.formats import DAMAGE, npz
from fedlag.errors import InputError

Rows = NDArray[np.int64]
Seed = int | Sequence[int]

DRAWS = 20_000
"""Dirichlet draws before giving up. 100 clients at alpha 0.1 on ten classes need about 220."""


def iid(labels: Rows, clients: int, seed: Seed) -> list[Rows]:
    """A random permutation in equal shares."""
    refuse_too_many(len(labels), clients, 1)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    return [np.sort(rows) for rows in np.array_split(shuffled, clients)]


def dirichlet(labels: Rows, clients: int, alpha: float, seed: Seed, minimum: int = 40) -> list[Rows]:
    """The procedure of FedLAG's experiments: class by class, shares ~ Dir(alpha) over the clients that do not yet
    hold the mean number of rows, all of it drawn again until every client has `minimum` rows."""
    refuse_too_many(len(labels), clients, minimum)
    generator = np.random.default_rng(seed)
    counts = accepted(np.bincount(labels), clients, alpha, minimum, generator).counts
    return _assign(labels, counts, generator)


class Draw(NamedTuple):
    counts: Rows  # (classes, clients)
    draws: int  # how many it took


def accepted(sizes: Rows, clients: int, alpha: float, minimum: int, generator: np.random.Generator) -> Draw:
    """The first Dirichlet draw that gives every client `minimum` rows. sizes: (classes,) rows of each class.

    Few draws may be good (0.45 % for 100 clients at alpha 0.1 on CIFAR-10), so only counts are drawn, many at a time.
    """
    together = max(1, min(256, 2**20 // (len(sizes) * clients)))
    limit = max(1, min(DRAWS, 40_000_000 // (len(sizes) * clients)))
    for before in range(0, limit, together):
        counts = _draw(sizes, clients, alpha, together, generator)
        good = np.flatnonzero(counts.sum(axis=1).min(axis=1) >= minimum)
        if good.size:
            return Draw(counts[good[0]], before + int(good[0]) + 1)
    raise InputError(
        f"No Dirichlet split of {sizes.sum():,} rows with alpha {alpha} gave each of {clients} clients {minimum} rows "
        f"in {limit:,} draws; lower data.minimum, raise data.alpha or ask for fewer clients."
    )


def _draw(sizes: Rows, clients: int, alpha: float, draws: int, generator: np.random.Generator) -> Rows:
    """Independent draws of (classes, clients) counts, stacked."""
    counts = np.zeros((draws, len(sizes), clients), np.int64)
    held = np.zeros((draws, clients), np.int64)
    for label in np.flatnonzero(sizes):
        needy = held * clients < sizes.sum()
        shares = generator.dirichlet(np.full(clients, alpha), draws) * needy
        shares = np.where(shares.any(axis=1, keepdims=True), shares, needy)  # a tiny alpha may leave them nothing
        ends = np.cumsum(shares, axis=1)
        ends = (ends / ends[:, -1:] * sizes[label]).astype(np.int64)
        counts[:, label] = np.diff(ends, axis=1, prepend=0)
        held += counts[:, label]
    return counts


def classes_per_client(labels: Rows, clients: int, classes: int, seed: Seed) -> list[Rows]:
    """`classes` classes for every client and at least one client for every class, in nearly equal sizes.

    Sizes are as equal as the classes allow: with one class each, clients differ where classes do.
    """
    _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    holders = _holders(sizes, clients, classes)
    generator = np.random.default_rng(seed)
    free = np.full(clients, classes)
    held = np.zeros((len(sizes), clients), bool)
    for label in generator.permutation(len(sizes)):
        # Those with most places left come first: like this every client ends with exactly `classes`.
        chosen = np.lexsort((generator.random(clients), -free))[: holders[label]]
        held[label, chosen] = True
        free[chosen] -= 1
    return _assign(labels, _even(sizes, held), generator)


def _holders(sizes: Rows, clients: int, classes: int) -> Rows:
    """How many clients hold each class: clients * classes places, one per class and the rest by size."""
    places = clients * classes
    most = np.minimum(sizes, clients)
    if classes > len(sizes):
        raise InputError(f"data.classes_per_client is {classes}, but the data have {len(sizes)} classes.")
    if places < len(sizes):
        raise InputError(
            f"{clients} clients of {classes} classes each cannot hold all {len(sizes)} classes; raise "
            "data.classes_per_client or data.clients."
        )
    if places > most.sum():
        raise InputError(
            f"{clients} clients of {classes} classes each are more than {sizes.sum():,} rows can serve; lower "
            "data.classes_per_client or data.clients."
        )
    holders = np.ones_like(sizes)
    while holders.sum() < places:
        holders[np.where(holders < most, sizes / holders, 0).argmax()] += 1
    return holders


def _even(sizes: Rows, held: NDArray[np.bool_]) -> Rows:
    """(classes, clients) counts, positive exactly where `held`, that use every row and make clients alike in size."""
    shares = held.astype(np.float64)
    for _ in range(200):  # Sinkhorn: clients alike, then classes whole
        shares /= shares.sum(axis=0)
        shares *= (sizes / shares.sum(axis=1))[:, None]
    spare = sizes - held.sum(axis=1)  # beyond the one row that every holder has for certain
    ends = np.cumsum(shares, axis=1)
    ends = np.rint(ends / ends[:, -1:] * spare[:, None]).astype(np.int64)
    counts: Rows = np.diff(ends, axis=1, prepend=0) + held
    return counts


def dirichlet_replacement(
    labels: Rows, pools: Sequence[Rows], clients: int, alpha: float, seed: Seed
) -> list[tuple[Rows, ...]]:
    """Clients of equal size, each with its own label mix ~ Dir(alpha), drawn with replacement from every pool.

    Returns for every client one sorted array of rows per pool. A client's mix is the same in all pools, and what is
    drawn from one pool never comes from another, so disjoint pools give test rows that were never trained on.
    """
    classes = int(labels.max()) + 1
    common = np.flatnonzero(np.all([np.bincount(labels[pool], minlength=classes) > 0 for pool in pools], axis=0))
    if not common.size:
        raise InputError("No class has rows in every pool, so no client can draw the same mix from all; use more data.")
    of_class = [[pool[labels[pool] == label] for label in common] for pool in pools]
    generator = np.random.default_rng(seed)

    def draw(mix: NDArray[np.float64], pool: Rows, rows: list[Rows]) -> Rows:
        counts = generator.multinomial(max(1, round(len(pool) / clients)), mix)
        return np.sort(np.concatenate([generator.choice(own, n) for own, n in zip(rows, counts, strict=True)]))

    mixes = generator.dirichlet(np.full(len(common), alpha), clients)
    return [tuple(draw(mix, pool, rows) for pool, rows in zip(pools, of_class, strict=True)) for mix in mixes]


def by_client(client: Rows) -> list[Rows]:
    """client: (examples,) from 0, whose each row is."""
    return [np.flatnonzero(client == one) for one in range(int(client.max()) + 1)]


def given(file: Path, examples: int) -> list[Rows]:
    """Rows per client from a file: a JSON list of lists, or an .npz of one array per client, in the file's order.

    Rows may be left out; no row may appear twice.
    """
    rows = [_row_numbers(own, client, file) for client, own in enumerate(_read(file))]
    if not rows:
        raise InputError(f"{file} holds no clients.")
    everyone = np.concatenate(rows)
    outside = everyone[(everyone < 0) | (everyone >= examples)]
    if outside.size:
        raise InputError(f"{file} names row {outside[0]}, but the data have rows 0 to {examples - 1}.")
    values, times = np.unique(everyone, return_counts=True)
    if (times > 1).any():
        raise InputError(f"{file} gives row {values[times > 1][0]} more than once; a row belongs to one client, once.")
    return [np.sort(own) for own in rows]


def _read(file: Path) -> list[Any]:
    try:
        if file.suffix == ".npz":
            with npz(file) as arrays:
                return [arrays[name] for name in arrays.files]
        content = json.loads(file.read_text(encoding="utf-8"))
    except DAMAGE as error:
        raise InputError(f"{file} cannot be read as row numbers per client (JSON or .npz): {error}.") from error
    if not isinstance(content, list):
        raise InputError(f"{file} must hold a list with one list of row numbers per client.")
    return content


def _row_numbers(own: Any, client: int, file: Path) -> Rows:
    try:
        rows = np.asarray(own)
    except ValueError:  # lists of unequal length inside
        rows = np.empty((), object)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise InputError(f"{file}: client {client} must be a list of whole row numbers.")
    return rows.astype(np.int64)


def refuse_too_many(examples: int, clients: int, minimum: int) -> None:
    if clients * minimum > examples:
        raise InputError(
            f"{clients} clients of at least {minimum} rows each are more than {examples:,} rows can serve; ask for at "
            f"most {examples // minimum} clients or lower data.minimum."
        )


def _assign(labels: Rows, counts: Rows, generator: np.random.Generator) -> list[Rows]:
    """Deal the rows of each class, shuffled, by (classes, clients) counts."""
    dealt: list[list[Rows]] = [[] for _ in range(counts.shape[1])]
    for label, shares in enumerate(counts):
        rows = generator.permutation(np.flatnonzero(labels == label))
        for own, part in zip(dealt, np.split(rows, np.cumsum(shares)[:-1]), strict=True):
            own.append(part)
    return [np.sort(np.concatenate(own)) for own in dealt]
