"""The architectures by name, described as data.

A description is checked without importing torch, so command lines and experiment files can be read quickly; only
`build` makes modules of it. Every architecture is convolutions, then `hidden` fully connected layers, then the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from fedlag import check
from fedlag.errors import InputError, unknown

if TYPE_CHECKING:
    from fedlag.net import Net

NORMS = ("batch", "group", "none")
SHORTCUTS = ("projection", "free")


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Stages of convolutions and ReLUs, a 2x2 max pool after each stage, then fully connected layers."""

    stages: tuple[tuple[int, ...], ...] = ()  # output channels of every convolution
    kernel: int = 3
    padding: int = 1
    hidden: tuple[int, ...]
    norm: str = "none"  # after every layer of the body

    def pooled(self, side: int) -> int:
        """What is left of an image's side after all stages."""
        for stage in self.stages:
            side = (side - len(stage) * (self.kernel - 1 - 2 * self.padding)) // 2
        return side

    @property
    def smallest(self) -> int:
        """The shortest side an image may have."""
        return next(side for side in count(1) if self.pooled(side) >= 1)


@dataclass(frozen=True, kw_only=True)
class Residual:
    """A 3x3 convolution, groups of two-convolution residual blocks, a global average, then fully connected layers.

    Every group after the first halves the image. `shortcut` is what a block adds to its result when the shape
    changes: a 1x1 convolution ("projection"), or every second pixel with zeros for new channels ("free").
    """

    blocks: tuple[int, ...]  # in each group
    channels: tuple[int, ...]  # of each group; the first convolution has those of the first group
    hidden: tuple[int, ...]
    norm: str = "batch"  # after every convolution
    shortcut: str = "projection"
    smallest: int = 1


NETS: dict[str, Plain | Residual] = {
    "mlp": Plain(hidden=(100,)),
    "lenet": Plain(stages=((6,), (16,)), kernel=5, padding=0, hidden=(120, 84)),
    "cnn": Plain(stages=((32,), (64,)), kernel=5, padding=0, hidden=(512,)),
    "cnn20": Plain(stages=((32, 32), (64, 64), (128, 128)), hidden=(512,)),
    "resnet9": Residual(blocks=(1, 2, 2, 1), channels=(32, 64, 128, 256), hidden=(256, 128)),
    "resnet20w": Residual(blocks=(3, 3, 3), channels=(64, 128, 256), hidden=(256, 128)),
    "resnet18": Residual(blocks=(2, 2, 2, 2), channels=(64, 128, 256, 512), hidden=()),
}


def choose(
    name: str, *, norm: str | None = None, hidden: Sequence[int] | None = None, shortcut: str | None = None
) -> Plain | Residual:
    """The named architecture, with what you choose in place of its defaults."""
    if name not in NETS:
        raise unknown("model", name, NETS)
    chosen: dict[str, Any] = {}
    if norm is not None:
        check.one_of("norm", norm, NORMS)
        chosen["norm"] = norm
    if hidden is not None:
        widths = isinstance(hidden, Sequence) and all(_positive(width) for width in hidden)
        check.require(widths, "hidden", hidden, "a list of widths of fully connected layers, such as (256, 128)")
        chosen["hidden"] = tuple(hidden)
    if shortcut is not None:
        if isinstance(NETS[name], Plain):
            residual = ", ".join(other for other, net in NETS.items() if isinstance(net, Residual))
            raise InputError(f"The model {name!r} takes no shortcut; leave it out, or choose one of {residual}.")
        check.one_of("shortcut", shortcut, SHORTCUTS)
        chosen["shortcut"] = shortcut
    return replace(NETS[name], **chosen)


def build(
    name: str,
    shape: Sequence[int],
    classes: int,
    *,
    norm: str | None = None,
    hidden: Sequence[int] | None = None,
    shortcut: str | None = None,
    seed: int = 0,
) -> Net:
    """The named architecture for images of `shape` (channels, height, width).

    The initial weights are PyTorch's defaults and depend on `seed` only; no other random number is touched.
    """
    architecture = choose(name, norm=norm, hidden=hidden, shortcut=shortcut)
    sizes = len(shape) == 3 and all(_positive(size) for size in shape)
    check.require(sizes, "shape", tuple(shape), "three positive whole numbers: channels, height, width")
    check.count("classes", classes, least=1)
    channels, height, width = shape
    least = architecture.smallest
    if min(height, width) < least:
        fitting = ", ".join(other for other, net in NETS.items() if net.smallest <= min(height, width))
        raise InputError(
            f"The model {name!r} needs images of at least {least}x{least} pixels, and these are {height}x{width} "
            f"(shape {tuple(shape)}); enlarge them or choose one of {fitting}."
        )
    from fedlag.nets.modules import network  # torch is only needed from here on

    return network(architecture, (channels, height, width), classes, seed)


def _positive(value: object) -> bool:
    return isinstance(value, int) and value >= 1
