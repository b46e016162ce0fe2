from __future__ import annotations

import math

import pytest

from fedlag.data.settings import SPLITS, Data
from fedlag.errors import InputError


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("name", 3),
        ("root", ""),
        ("clients", 0),
        ("clients", 2.0),
        ("clients", True),
        ("split", 1),
        ("split", "dirichelt"),
        ("alpha", 0),
        ("alpha", -0.1),
        ("alpha", math.nan),
        ("alpha", math.inf),
        ("alpha", "0.1"),
        ("classes_per_client", 0),
        ("file", ""),
        ("minimum", 2),
        ("limit", 0),
        ("validation", 0),
        ("validation", 1),
        ("test", 1.5),
        ("test", False),
        ("seed", -1),
        ("seed", 2**32),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_key_and_what_was_given(key, value):
    with pytest.raises(InputError, match=rf"data\.{key}\b") as error:
        Data(**{key: value})
    assert repr(value) in str(error.value)


def test_a_misspelt_split_suggests_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'dirichlet'"):
        Data(split="dirichelt")


def test_shares_that_leave_nothing_to_train_on_are_refused():
    with pytest.raises(InputError, match="leaves nothing to train on"):
        Data(validation=0.5, test=0.5)


def test_a_file_is_refused_where_it_would_not_be_read():
    with pytest.raises(InputError, match=r"data\.file is 'rows.json', but data\.split is 'iid'; .* only read"):
        Data(split="iid", file="rows.json")
    assert Data(split="given", file="rows.json").file == "rows.json"


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_can_be_asked_for(split):
    assert Data(split=split, alpha=1, root="folder", limit=100).split == split
