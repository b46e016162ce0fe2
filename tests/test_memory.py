"""Large memory is as any other, and kept memory too."""

import gc
import platform

import pytest
import torch

from fedlag.memory import LARGE_PAGE, keep_what_is_freed, room


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("size", [0, 3, LARGE_PAGE])
def test_every_row_holds_what_is_put_in(dtype, size):
    found = room(torch.zeros(size, 2, dtype=dtype), 3)
    assert (found.shape, found.dtype) == ((3, size, 2), dtype)
    for row, held in enumerate(found):
        held.fill_(row)
    assert [row.double().sum().item() for row in found] == [0, 2 * size, (1 if dtype == torch.bool else 2) * 2 * size]


def test_what_is_cut_from_it_outlives_it():
    part = room(torch.zeros(LARGE_PAGE), 2).fill_(7)[1, :5]
    gc.collect()
    room(torch.zeros(LARGE_PAGE), 2).fill_(8)
    assert part.tolist() == [7] * 5


def test_numbers_alone_have_rows_too():
    assert room(torch.tensor(1.0), 4).shape == (4,)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_glibc_takes_the_settings():
    assert keep_what_is_freed()
