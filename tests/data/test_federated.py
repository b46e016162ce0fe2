from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlag.data.federated import Data, Federated, federate, partition
from fedlag.data.own import from_arrays
from fedlag.data.sources import load
from fedlag.errors import InputError

DIGITS = load("digits")

DISJOINT = [
    {"split": "dirichlet", "alpha": 0.5},
    {"split": "iid"},
    {"split": "classes", "classes_per_client": 3},
]

divisions = st.builds(
    dict,
    clients=st.integers(4, 25),
    seed=st.integers(0, 2**32 - 1),
    validation=st.sampled_from([0.01, 0.15, 0.5]),
    test=st.sampled_from([0.01, 0.25, 0.49]),
    limit=st.sampled_from([None, 400, 900]),
    minimum=st.just(3),
)


@pytest.mark.parametrize("choice", DISJOINT)
@given(division=divisions)
@settings(max_examples=15, deadline=None)
def test_no_row_is_held_twice_and_every_client_can_train_validate_and_test(choice, division):
    parts = partition(DIGITS, Data(**choice, **division))
    rows = np.concatenate([rows for own in parts for rows in own])
    assert len(np.unique(rows)) == len(rows) == (division["limit"] or len(DIGITS))
    assert all(len(rows) >= 1 for own in parts for rows in own)


@given(division=divisions)
@settings(max_examples=15, deadline=None)
def test_with_replacement_no_row_is_in_two_kinds_of_part_of_any_clients(division):
    parts = partition(DIGITS, Data(split="replacement", **division))
    train, validation, test = (np.unique(np.concatenate(rows)) for rows in zip(*parts, strict=True))
    assert not set(train) & set(test)
    assert not set(train) & set(validation)
    assert not set(validation) & set(test)
    assert len({tuple(map(len, own)) for own in parts}) == 1


@pytest.mark.parametrize("choice", [*DISJOINT, {"split": "replacement"}])
def test_the_same_settings_give_the_same_partition_and_another_seed_another(choice):
    first, again = (Federated(DIGITS, partition(DIGITS, Data(**choice))).hash for _ in range(2))
    other = Federated(DIGITS, partition(DIGITS, Data(**choice, seed=1))).hash
    assert first == again != other


def test_shares_are_those_asked_for():
    for parts in partition(DIGITS, Data(split="iid", clients=5, validation=0.2, test=0.3)):
        sizes = np.array([len(rows) for rows in parts])
        np.testing.assert_allclose(sizes / sizes.sum(), [0.5, 0.2, 0.3], atol=0.01)


@pytest.mark.parametrize(("validation", "test"), [(0.5, 0.49), (0.98, 0.01), (0.01, 0.98), (0.01, 0.01)])
def test_even_the_smallest_clients_get_a_row_of_every_part(validation: float, test: float):
    sizes = np.arange(3, 13)
    dataset = from_arrays(np.zeros((sizes.sum(), 1)), np.arange(sizes.sum()) % 2, clients=np.repeat(sizes, sizes))
    data = Data(split="given", clients=len(sizes), minimum=3, validation=validation, test=test)
    for own, size in zip(partition(dataset, data), sizes, strict=True):
        assert min(map(len, own)) >= 1
        assert sum(map(len, own)) == size


def test_how_a_clients_rows_are_divided_does_not_depend_on_other_clients(tmp_path: Path):
    def first_client(others: list[int]) -> list[list[int]]:
        file = tmp_path / "rows.json"
        file.write_text(json.dumps([list(range(50)), others]))
        data = Data(split="given", file=str(file), clients=2)
        return [rows.tolist() for rows in partition(DIGITS, data)[0]]

    assert first_client(list(range(100, 120))) == first_client(list(range(300, 900)))


def test_examples_are_the_rows_of_the_part_ready_for_a_network():
    federated = federate(Data())
    x, y = federated.examples(3, "test")
    rows = federated.parts[3].test
    assert x.dtype.is_floating_point
    assert tuple(x.shape) == (len(rows), 1, 8, 8)
    np.testing.assert_array_equal(y, DIGITS.y[rows])
    np.testing.assert_allclose(x.numpy(), DIGITS.x[rows].numpy() / 8 - 1)


def test_the_summary_counts_every_example_once():
    federated = federate(Data(clients=7, split="iid"))
    summary = federated.summary()
    assert [holding.client for holding in summary] == list(range(federated.clients)) == list(range(7))
    assert np.sum([holding.counts for holding in summary], axis=0).tolist() == DIGITS.y.bincount().tolist()
    for holding in summary:
        assert holding.train + holding.validation + holding.test == sum(holding.counts)
        assert holding.counts == tuple(federated.label_counts(holding.client))


def test_the_hash_is_fixed_and_knows_data_rows_and_parts():
    federated = federate(Data(split="iid"))
    assert federated.hash == "d3b5015dc8fa65963e0cd1a535c0cb69278fc223234a5ac8280808e44c4ebc4e"
    moved = [own._replace(train=own.train[1:], test=np.append(own.train[:1], own.test)) for own in federated.parts]
    others = [
        Federated(replace(DIGITS, name="other"), federated.parts),
        Federated(DIGITS, federated.parts[::-1]),
        Federated(DIGITS, tuple(moved)),
    ]
    assert len({federated.hash, *(other.hash for other in others)}) == 4


def test_data_that_say_whose_they_are_can_be_used_as_given():
    x, y = np.zeros((30, 2)), [0, 1] * 15
    dataset = from_arrays(x, y, clients=["a"] * 12 + ["b"] * 18)
    parts = partition(dataset, Data(split="given", clients=2))
    assert [np.sort(np.concatenate(own)).tolist() for own in parts] == [list(range(12)), list(range(12, 30))]
    with pytest.raises(InputError, match=r"has 2 clients; set data.clients to 2"):
        partition(dataset, Data(split="given", clients=3))
    with pytest.raises(InputError, match="does not say whose its rows are; name a file"):
        partition(from_arrays(x, y), Data(split="given", clients=2))


def test_the_same_limit_and_seed_keep_the_same_rows_whatever_the_split():
    def used(**choice: object) -> set[int]:
        parts = partition(DIGITS, Data(limit=300, clients=5, seed=5, **choice))
        return {int(row) for own in parts for rows in own for row in rows}

    kept = used(split="iid")
    assert len(kept) == 300
    assert kept == used(split="dirichlet") == used(split="classes")
    assert used(split="replacement") < kept


def test_a_limit_also_holds_for_given_rows():
    dataset = from_arrays(np.zeros((100, 2)), [0, 1] * 50, clients=[0] * 50 + [1] * 50)
    parts = partition(dataset, Data(split="given", clients=2, limit=40, minimum=3))
    assert sum(len(rows) for own in parts for rows in own) == 40


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ({"clients": 180}, "180 clients of at least 10 rows each .* at most 179 clients"),
        ({"clients": 180, "split": "iid"}, "at most 179 clients"),
        ({"clients": 180, "split": "replacement"}, "at most 179 clients"),
        ({"clients": 180, "split": "classes"}, "at most 179 clients"),
        ({"limit": 1798}, "data.limit is 1,798, but the data have 1,797 rows"),
    ],
)
def test_more_than_the_data_can_serve_is_refused(choice, complaint):
    with pytest.raises(InputError, match=complaint):
        partition(DIGITS, Data(**choice))


def test_drawing_with_replacement_needs_a_class_with_a_row_for_every_part():
    dataset = from_arrays(np.zeros((4, 2)), [0, 0, 1, 1])
    with pytest.raises(InputError, match="No class has 3 rows"):
        partition(dataset, Data(split="replacement", clients=1, minimum=3))


def test_a_client_with_too_few_rows_is_named(tmp_path: Path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([list(range(20)), [20, 21]]))
    with pytest.raises(InputError, match=r"Client 1 has 2 rows, fewer than data.minimum = 10"):
        partition(DIGITS, Data(split="given", file=str(file), clients=2))
    file.write_text(json.dumps([list(range(20)), [20, 21, 22]]))
    parts = partition(DIGITS, Data(split="given", file=str(file), clients=2, minimum=3))
    assert [len(rows) for rows in parts[1]] == [1, 1, 1]


def test_importing_settings_and_split_and_federated_does_not_import_torch():
    code = "import sys, fedlag.data.settings, fedlag.data.federated; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
