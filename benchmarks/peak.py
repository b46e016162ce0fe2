"""What the machine can do, and what the workloads ask of it; prints one JSON line.

fp32 products are tried as PyTorch does them and by way of oneDNN, which it takes when lower precision is allowed. Some
processors compute that in true fp32 and faster; a way whose results are not fp32's does not count.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engines.networks import build
from benchmarks.workloads import Workload

SIZE, REPEATS = 2048, 12
TRUE = 1e-5  # relative error above which a product is not of fp32 quality; bf16's is 3e-3


def fp32() -> float:
    a, b = torch.randn(2, SIZE, SIZE)
    exact = (a.double() @ b.double()).float()
    best = 0.0
    for way in ("none", "bf16"):
        torch.backends.mkldnn.matmul.fp32_precision = way
        error = float((a @ b - exact).norm() / exact.norm())
        if error < TRUE:
            best = max(best, rate(lambda: a @ b))
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    return best


def bf16() -> float:
    a, b = torch.randn(2, SIZE, SIZE).bfloat16()
    return rate(lambda: a @ b)


def rate(product: Callable[[], object]) -> float:
    """Floating-point operations a second."""
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - began)
    return 2 * SIZE**3 / median(seconds)


def operations(workload: Workload) -> float:
    """Floating-point operations to train on one image."""
    net, counter = build(workload), FlopCounterMode(display=False)
    with counter:
        net(torch.randn(2, *workload.shape)).sum().backward()
    return counter.get_total_flops() / 2


if __name__ == "__main__":
    asked = {name: Workload.of(fields) for name, fields in json.loads(sys.argv[1])}
    print(json.dumps({"fp32": fp32(), "bf16": bf16(), "operations": {n: operations(w) for n, w in asked.items()}}))
