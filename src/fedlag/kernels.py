"""Which kernel multiplies float32 matrices on the CPU.

PyTorch's own, MKL, runs at about half speed on processors that are not Intel's. oneDNN, which comes with PyTorch too,
is reached by allowing bfloat16; many processors then stay with float32 all the same and use the whole machine. So it
is taken where its products are seen to be float32's, and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from threading import RLock

import torch

SETTING = "FEDLAG_PRODUCTS"  # "stock" in the environment leaves all products to PyTorch's own choice
EXACT = 1e-5  # relative error that is still float32's; bfloat16 has 3e-3
SHAPES = (  # (rows, inner, columns) of products as they come up: analysis, layers forward, their gradients
    *((20, 4096, 20), (200, 4096, 200)),
    *((1, 784, 100), (10, 1024, 512), (32, 1024, 512), (100, 512, 10), (1000, 784, 200)),
    *((512, 10, 1024), (512, 32, 1024), (10, 10, 512), (10, 512, 1024), (32, 512, 1024)),
)

_switch = RLock()  # the choice is one for the whole process


@contextmanager
def fast_products() -> Iterator[None]:
    """Float32 matrix products on the CPU take the fast kernel, if this machine has one that is as exact."""
    with _allowed() if _wanted() else nullcontext():
        yield


def prefer_fast_products() -> None:
    """The same for all of this process from now on; whoever trains calls this, so that every federation agrees."""
    if _wanted():
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]


def _wanted() -> bool:
    return os.environ.get(SETTING) != "stock" and exact()


@cache
def exact() -> bool:
    """Whether products by way of oneDNN are float32's, as tried out on this machine once."""
    if not hasattr(torch.backends.mkldnn, "matmul"):  # an older PyTorch
        return False
    generator = torch.Generator().manual_seed(0)
    for rows, inner, columns in SHAPES:
        a, b = torch.randn(rows, inner, generator=generator), torch.randn(columns, inner, generator=generator)
        with _allowed():
            product = a @ b.T
        truth = a.double() @ b.double().T
        if not (product - truth).norm() < EXACT * truth.norm():
            return False
    return True


@contextmanager
def _allowed() -> Iterator[None]:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with _switch:
        before = matmul.fp32_precision
        matmul.fp32_precision = "bf16"
        try:
            yield
        finally:
            matmul.fp32_precision = before
