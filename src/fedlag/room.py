"""Large memory that is quick to fill."""

from __future__ import annotations

import mmap
from contextlib import suppress

from torch import Tensor, frombuffer

LARGE = 2**21  # bytes of a large page


def room(like: Tensor, rows: int) -> Tensor:
    """An empty tensor (rows, *shape) of `like`'s kind.

    In large pages, where the system has them: filling fresh memory otherwise takes most of its time to be given the
    pages one by one.
    """
    size = rows * like.numel() * like.element_size()
    if size < LARGE or like.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(rows, *like.shape)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return frombuffer(memory, dtype=like.dtype).view(rows, *like.shape)
