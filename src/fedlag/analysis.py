"""Conflict analysis of update files in safetensors, whichever framework wrote them: one file for each client.

Files are read one tensor at a time, so what is in memory is one tensor of all clients, however large the models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedlag import divergence
from fedlag.divergence import Conflict
from fedlag.errors import InputError, unknown

UNITS = ("module", "tensor")
PIECE = 65_536  # numbers of each client that are in memory at once

File = str | PathLike[str]
Part = tuple[slice, ...]  # of the first dimensions; of the others everything


@dataclass(frozen=True)
class Layer:
    """One layer's updates; iterating reads the files, and gives blocks (clients, …): tensors or parts of them."""

    tensors: Mapping[str, tuple[int, ...]]  # their shapes
    files: tuple[Path, ...]
    before: Path | None

    def __iter__(self) -> Iterator[Tensor]:
        return (self._block(tensor, part) for tensor, shape in self.tensors.items() for part in parts(shape, PIECE))

    def _block(self, tensor: str, part: Part) -> Tensor:
        ends = _stack(self.files, tensor, part)
        return ends if self.before is None else ends.sub_(_stack((self.before,), tensor, part))


def analyze_files(
    files: Sequence[File], before: File | None = None, xi: float = 0.0, unit: str = "module"
) -> dict[str, Conflict]:
    """Conflicts of every layer between the clients' files; the arguments of `read_updates` and `divergence.analyze`."""
    return divergence.analyze(read_updates(files, before, unit), xi)


def read_updates(files: Sequence[File], before: File | None = None, unit: str = "module") -> dict[str, Layer]:
    """The clients' updates by layer, for `divergence.analyze`. Names and shapes are checked now, values when read.

    files: one for each client, holding its update; or, with `before`, the weights it ended with.
    before: the weights all clients started from.
    unit: "module" joins tensors whose names differ after the last dot only ("conv1.weight" and "conv1.bias" are layer
    "conv1"); "tensor" takes each for itself. Layers stand in the order of the first file.
    Integer tensors, such as counters, are left out; everything else counts, running statistics too.
    """
    if unit not in UNITS:
        raise unknown("unit", unit, UNITS)
    clients, start = tuple(map(Path, files)), None if before is None else Path(before)
    if len(clients) < 2:
        raise InputError(f"Conflicts are between clients, but {len(clients)} file was given; give two or more.")
    shapes = _same_shapes(clients if start is None else (*clients, start))
    members: dict[str, list[str]] = {}
    for tensor in shapes:
        members.setdefault(tensor.rpartition(".")[0] or tensor if unit == "module" else tensor, []).append(tensor)
    return {
        layer: Layer({tensor: tuple(shapes[tensor]) for tensor in tensors}, clients, start)
        for layer, tensors in members.items()
    }


def parts(shape: Sequence[int], most: int) -> Iterator[Part]:
    """What a tensor of this shape falls into, in order, when no part may hold more than `most` numbers."""
    if math.prod(shape) <= most:
        yield ()
        return
    rows, row = shape[0], math.prod(shape[1:])
    if row <= most:
        yield from ((slice(first, first + most // row),) for first in range(0, rows, most // row))
    else:
        yield from ((slice(first, first + 1), *rest) for first in range(rows) for rest in parts(shape[1:], most))


def as_rows(conflicts: Mapping[str, Conflict]) -> list[dict[str, Any]]:
    """One dict of plain values for each layer, in FedLAG's order: the layers it would make personal come first."""
    return [
        {
            "layer": layer,
            "count": conflicts[layer].count,
            "pairs": conflicts[layer].pairs,
            "mean_cosine": conflicts[layer].mean_cosine,
            "norm": conflicts[layer].norm,
            "improvement": conflicts[layer].improvement,
        }
        for layer in divergence.rank(conflicts)
    ]


def _same_shapes(files: Sequence[Path]) -> dict[str, list[int]]:
    """The shapes of the floating-point tensors, after making sure that all the files agree on them."""
    first, *others = files
    expected = _shapes(first)
    if not expected:
        raise InputError(f"{first} holds no floating-point tensors; give files of weights or of their updates.")
    seen = {first.resolve()}
    for file in others:
        if file.resolve() in seen:
            raise InputError(f"{file} is given twice; each file must belong to another client or be `before`.")
        seen.add(file.resolve())
        shapes = _shapes(file)
        for tensor in expected | shapes:
            if tensor not in shapes or tensor not in expected:
                lacking, having = (file, first) if tensor in expected else (first, file)
                raise InputError(
                    f"{lacking} has no floating-point tensor {tensor!r}, but {having} has; "
                    "all files must be of the same model."
                )
            if shapes[tensor] != expected[tensor]:
                raise InputError(
                    f"Tensor {tensor!r} is of shape {shapes[tensor]} in {file}, but {expected[tensor]} in {first}; "
                    "all files must be of the same model."
                )
    return expected


def _shapes(file: Path) -> dict[str, list[int]]:
    with _open(file) as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (it is no dict)
        return {name: part.get_shape() for name, part in slices.items() if part.get_dtype().startswith(("F", "BF"))}


def _stack(files: Sequence[Path], tensor: str, part: Part) -> Tensor:
    """The part of the tensor of every file, (files, …)."""
    stacked: Tensor | None = None
    for row, file in enumerate(files):
        with _open(file) as tensors:
            value = tensors.get_slice(tensor)[part] if part else tensors.get_tensor(tensor)
        if stacked is None:
            stacked = torch.empty(len(files), *value.shape, dtype=divergence.precision(value.dtype))
        stacked[row] = value
        if not stacked[row].isfinite().all():
            raise InputError(f"{file} holds NaN or infinite values in {tensor!r}; mend that file or leave it out.")
    assert stacked is not None
    return stacked


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} cannot be read as safetensors ({error}); give a whole .safetensors file.") from error
