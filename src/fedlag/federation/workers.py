"""Threads that use one core each."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import torch


def pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "fedlag", initializer=torch.set_num_threads, initargs=(1,))


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
