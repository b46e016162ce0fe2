"""How the C library treats memory that is freed."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # of glibc's mallopt
LARGE, STRETCH = 2**30, 2**24


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
