"""The fast kernel is taken where it is exact, and leaves no trace."""

import threading

import pytest
import torch

from fedlag import kernels
from fedlag.divergence import gram
from fedlag.kernels import SETTING, fast_products

MATMUL = getattr(torch.backends.mkldnn, "matmul", None)
BEFORE = "none"

pytestmark = pytest.mark.skipif(MATMUL is None, reason="this PyTorch has no choice of kernels")


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv(SETTING, raising=False)
    chosen = MATMUL.fp32_precision  # by what trained in this process before
    MATMUL.fp32_precision = BEFORE
    yield
    MATMUL.fp32_precision = chosen


def product(seed=0):
    a, b = torch.randn(2, 300, 2000, generator=torch.Generator().manual_seed(seed))
    truth = a.double() @ b.double().T
    with fast_products():
        found = a @ b.T
    return found, float((found - truth).norm() / truth.norm())


def test_products_are_those_of_float32_whatever_the_machine():
    assert product()[1] < kernels.EXACT


def test_the_same_product_has_the_same_bits():
    assert torch.equal(product()[0], product()[0])


def test_the_choice_ends_with_the_products_even_where_they_fail():
    during = []

    def fail():
        with fast_products():
            during.append(MATMUL.fp32_precision)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert during == ["bf16" if kernels.exact() else BEFORE]
    assert MATMUL.fp32_precision == BEFORE


def test_threads_that_multiply_at_once_leave_the_choice_as_it_was():
    h = torch.randn(30, 5000)
    results = []
    threads = [threading.Thread(target=lambda: results.append(gram([h]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(result, gram([h])) for result in results)
    assert MATMUL.fp32_precision == BEFORE


def test_a_setting_turns_it_off(monkeypatch):
    monkeypatch.setenv(SETTING, "stock")
    with fast_products():
        assert MATMUL.fp32_precision == BEFORE


def test_a_machine_whose_kernel_is_not_exact_keeps_its_own(monkeypatch):
    """As where bfloat16, once allowed, is what multiplies."""
    monkeypatch.setattr(kernels, "EXACT", 0.0)
    kernels.exact.cache_clear()
    with fast_products():
        assert MATMUL.fp32_precision == BEFORE
    kernels.exact.cache_clear()
