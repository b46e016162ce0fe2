"""A data set divided among clients, and each client's rows into train, validation and test."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from fedlag.data import split
from fedlag.data.dataset import Dataset
from fedlag.data.settings import Data
from fedlag.data.sources import load
from fedlag.data.split import Rows
from fedlag.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Data", "Dataset", "Federated", "Holding", "Parts", "federate", "partition"]

Part = Literal["train", "validation", "test"]

LIMIT, SPLIT, DIVISION = 1, 2, 3
"""What is drawn from data.seed, each from a stream of its own."""


class Parts(NamedTuple):
    """One client's row numbers, sorted."""

    train: Rows
    validation: Rows
    test: Rows


class Holding(NamedTuple):
    """One client's row of the summary."""

    client: int
    train: int
    validation: int
    test: int
    counts: tuple[int, ...]  # examples of each class, all parts together


@dataclass(frozen=True, eq=False)
class Federated:
    """The data live once, in `dataset`; what a client has is row numbers."""

    dataset: Dataset
    parts: tuple[Parts, ...]

    @property
    def clients(self) -> int:
        return len(self.parts)

    def examples(self, client: int, part: Part) -> tuple[Tensor, Tensor]:
        """x: (examples, channels, height, width) float32; y: (examples,) int64."""
        rows = getattr(self.parts[client], part)
        return self.dataset.pixels(rows), self.dataset.y[rows]

    def label_counts(self, client: int) -> Rows:
        """(classes,): the client's examples of each class, all parts together."""
        labels = self.dataset.y.numpy()[np.concatenate(self.parts[client])]
        return np.bincount(labels, minlength=self.dataset.classes)

    def summary(self) -> list[Holding]:
        return [
            Holding(client, len(train), len(validation), len(test), tuple(self.label_counts(client).tolist()))
            for client, (train, validation, test) in enumerate(self.parts)
        ]

    @property
    def hash(self) -> str:
        """SHA-256 of the data set's name and every client's rows: equal for equal partitions, on any machine."""
        digest = hashlib.sha256(self.dataset.name.encode())
        for rows in (rows for parts in self.parts for rows in parts):
            digest.update(len(rows).to_bytes(8, "little") + rows.astype("<i8").tobytes())
        return digest.hexdigest()


def federate(data: Data) -> Federated:
    """Load the data and divide them."""
    dataset = load(data.name, data.root)
    return Federated(dataset, partition(dataset, data))


def held_by(dataset: Dataset, data: Data, client: int) -> Federated:
    """One client's own data, divided into its parts; the others hold theirs elsewhere."""
    _refuse_small([len(dataset)], data)
    return Federated(dataset, (_divide(np.arange(len(dataset)), data, [data.seed, DIVISION, client]),))


def partition(dataset: Dataset, data: Data) -> tuple[Parts, ...]:
    """Who holds which rows of `dataset`; `data.name` and `data.root` don't matter here."""
    pool = _pool(len(dataset), data)
    labels = dataset.y.numpy()[pool]
    if data.split != "given":
        split.refuse_too_many(len(pool), data.clients, data.minimum)
    if data.split == "replacement":
        drawn = split.dirichlet_replacement(labels, _pools(labels, data), data.clients, data.alpha, [data.seed, SPLIT])
        parts = tuple(Parts(*(pool[rows] for rows in client)) for client in drawn)
        _refuse_small([sum(map(len, client)) for client in parts], data)
        return parts
    held = _given(dataset, data, pool) if data.split == "given" else [pool[rows] for rows in _drawn(labels, data)]
    _refuse_small([len(rows) for rows in held], data)
    return tuple(_divide(rows, data, [data.seed, DIVISION, client]) for client, rows in enumerate(held))


def _pool(examples: int, data: Data) -> Rows:
    """The row numbers in play, sorted."""
    if data.limit is None:
        return np.arange(examples)
    if data.limit > examples:
        raise InputError(f"data.limit is {data.limit:,}, but the data have {examples:,} rows; lower or remove it.")
    return np.sort(np.random.default_rng([data.seed, LIMIT]).permutation(examples)[: data.limit])


def _drawn(labels: Rows, data: Data) -> list[Rows]:
    seed = [data.seed, SPLIT]
    match data.split:
        case "dirichlet":
            return split.dirichlet(labels, data.clients, data.alpha, seed, data.minimum)
        case "classes":
            return split.classes_per_client(labels, data.clients, data.classes_per_client, seed)
        case _:
            return split.iid(labels, data.clients, seed)


def _pools(labels: Rows, data: Data) -> Parts:
    """The train, validation and test rows that all clients draw from; every class of 3 rows or more is in each."""
    classes = [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
    divided = [
        _divide(rows, data, [data.seed, DIVISION, label]) for label, rows in enumerate(classes) if len(rows) >= 3
    ]
    if not divided:
        raise InputError("No class has 3 rows, one each to train, validate and test; use more data (data.limit).")
    return Parts(*(np.concatenate(rows) for rows in zip(*divided, strict=True)))


def _given(dataset: Dataset, data: Data, pool: Rows) -> list[Rows]:
    if data.file is not None:
        source, held = data.file, split.given(Path(data.file).expanduser(), len(dataset))
    elif dataset.client is not None:
        source, held = dataset.name, split.by_client(dataset.client.numpy())
    else:
        raise InputError(
            f'data.split is "given", but {dataset.name} does not say whose its rows are; name a file of row numbers '
            "per client in data.file."
        )
    if len(held) != data.clients:
        raise InputError(
            f"data.clients is {data.clients}, but {source} has {len(held)} clients; set data.clients to {len(held)}."
        )
    return [rows[np.isin(rows, pool)] for rows in held]


def _refuse_small(sizes: Sequence[int], data: Data) -> None:
    smallest = int(np.argmin(sizes))
    if sizes[smallest] < data.minimum:
        raise InputError(
            f"Client {smallest} has {sizes[smallest]} rows, fewer than data.minimum = {data.minimum}; lower that (to 3 "
            "at least: one each to train, validate and test), use more data or fewer clients."
        )


def _divide(rows: Rows, data: Data, seed: Sequence[int]) -> Parts:
    """At random, by the shares asked for, and at least one row to each part."""
    rows = np.random.default_rng(seed).permutation(rows)
    test = min(max(1, round(len(rows) * data.test)), len(rows) - 2)
    validation = min(max(1, round(len(rows) * data.validation)), len(rows) - test - 1)
    cuts = np.split(rows, [test, test + validation])
    return Parts(train=np.sort(cuts[2]), validation=np.sort(cuts[1]), test=np.sort(cuts[0]))
