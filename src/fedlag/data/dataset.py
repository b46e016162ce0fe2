"""A labelled data set in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """Every example once, as stored; `pixels` gives what a network sees.

    x: (examples, channels, height, width) uint8 or float32. y: (examples,) int64 in 0..classes-1.
    A stored value v is seen as v * scale + shift.
    client: (examples,) int64 from 0, whose each example is, where the data themselves say so.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: int
    scale: float = 1.0
    shift: float = 0.0
    client: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def pixels(self, rows: NDArray[np.int64] | Tensor | slice) -> Tensor:
        """The examples of these row numbers, as float32."""
        return self.x[rows].float() * self.scale + self.shift


def from_numpy(
    name: str,
    x: NDArray[np.uint8] | NDArray[np.float32],
    y: NDArray[np.integer],
    classes: int,
    client: NDArray[np.integer] | None = None,
) -> Dataset:
    """x: (examples, channels, height, width). Bytes are taken for 0..255 and shown to a network as -1..1 (mean and
    standard deviation 0.5, the paper's choice); floats are shown as they are."""
    import torch

    scale, shift = (1 / 127.5, -1.0) if x.dtype == np.uint8 else (1.0, 0.0)
    owners = None if client is None else torch.from_numpy(client.astype(np.int64))
    labels = torch.from_numpy(y.astype(np.int64))
    images = torch.from_numpy(np.require(x, requirements=["C", "W"]))
    return Dataset(name, images, labels, classes, scale, shift, owners)
