"""Memory that is quick to get: kept when it is freed, and in large pages."""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress
from functools import cache

from torch import Tensor, frombuffer

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # of glibc's mallopt
LARGE, STRETCH = 2**30, 2**24
LARGE_PAGE = 2**21  # bytes


@cache
def keep_what_is_freed() -> bool:
    """Training frees and asks for the same tensors every step; that should not go through the system every time.

    Returns whether the C library knows the setting: glibc does.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, LARGE), (TOP_PAD, STRETCH))
    return all(mallopt(key, value) for key, value in settings)


def room(like: Tensor, rows: int) -> Tensor:
    """An empty tensor (rows, *shape) of `like`'s kind.

    In large pages, where the system has them: filling fresh memory otherwise takes most of its time to be given the
    pages one by one.
    """
    size = rows * like.numel() * like.element_size()
    if size < LARGE_PAGE or like.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(rows, *like.shape)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return frombuffer(memory, dtype=like.dtype).view(rows, *like.shape)
