from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlag.data import split
from fedlag.errors import InputError

SPLITS = {
    "iid": lambda labels, clients, seed: split.iid(labels, clients, seed),
    "dirichlet": lambda labels, clients, seed: split.dirichlet(labels, clients, 0.5, seed, minimum=1),
    "classes": lambda labels, clients, seed: split.classes_per_client(labels, clients, 2, seed),
}

seeds = st.integers(0, 2**32 - 1)
populations = st.integers(3, 12)


def labels_of(seed: int) -> np.ndarray:
    """200 to 400 rows of five classes, of unequal sizes."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(40, 80, 5)
    return generator.permutation(np.repeat(np.arange(5), sizes))


@pytest.mark.parametrize("name", SPLITS)
@given(clients=populations, seed=seeds)
@settings(max_examples=25, deadline=None)
def test_every_row_goes_to_exactly_one_client(name: str, clients: int, seed: int):
    labels = labels_of(seed)
    held = SPLITS[name](labels, clients, seed)
    assert len(held) == clients
    assert np.sort(np.concatenate(held)).tolist() == list(range(len(labels)))


@pytest.mark.parametrize("name", SPLITS)
@given(clients=populations, seed=seeds)
@settings(max_examples=10, deadline=None)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(name: str, clients: int, seed: int):
    labels = labels_of(0)
    first, again = (SPLITS[name](labels, clients, seed) for _ in range(2))
    other = SPLITS[name](labels, clients, seed + 1)
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@given(clients=populations, seed=seeds)
@settings(max_examples=25, deadline=None)
def test_iid_shares_differ_by_one_row_at_most(clients: int, seed: int):
    sizes = [len(rows) for rows in split.iid(labels_of(seed), clients, seed)]
    assert max(sizes) - min(sizes) <= 1


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any),
    clients=st.integers(1, 9),
    alpha=st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 1e6]),
    seed=seeds,
)
@settings(max_examples=60, deadline=None)
def test_dirichlet_counts_sum_to_the_classes_and_a_client_with_the_mean_gets_no_more(sizes, clients, alpha, seed):
    counts = split._draw(np.array(sizes), clients, alpha, 5, np.random.default_rng(seed))
    assert (counts >= 0).all()
    assert (counts.sum(axis=2) == sizes).all()
    before = np.cumsum(counts, axis=1) - counts
    assert not counts[before * clients >= sum(sizes)].any()


@given(clients=populations, minimum=st.integers(1, 15), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_dirichlet_gives_every_client_the_minimum(clients: int, minimum: int, seed: int):
    held = split.dirichlet(labels_of(seed), clients, 1.0, seed, minimum)
    assert min(len(rows) for rows in held) >= minimum


def test_the_minimum_is_reached_even_where_draws_just_below_it_are_common():
    labels = np.arange(60) % 3
    smallest = {min(map(len, split.dirichlet(labels, 5, 5.0, seed, minimum=9))) for seed in range(60)}
    assert 9 in smallest
    assert min(smallest) == 9


def test_small_alpha_means_few_classes_per_client_and_large_alpha_all_of_them():
    labels = np.repeat(np.arange(10), 1000)
    classes = {
        alpha: np.mean([len(np.unique(labels[rows])) for rows in split.dirichlet(labels, 20, alpha, 0)])
        for alpha in (0.05, 0.5, 100.0)
    }
    assert classes[0.05] < 5 < classes[0.5] < 10 == classes[100.0]


CIFAR10_SIZES = np.full(10, 6000)


def test_a_hundred_clients_at_alpha_one_tenth_are_served_long_before_the_last_draw():
    for seed in range(5):
        counts, draws = split.accepted(CIFAR10_SIZES, 100, 0.1, 40, np.random.default_rng(seed))
        assert draws < split.DRAWS / 10
        assert counts.sum(axis=0).min() >= 40
        assert (counts.sum(axis=1) == 6000).all()


def test_of_such_draws_about_one_in_two_hundred_is_good_as_in_the_papers_setting():
    generator = np.random.default_rng(0)
    good = [split._draw(CIFAR10_SIZES, 100, 0.1, 500, generator).sum(axis=1).min(axis=1) >= 40 for _ in range(12)]
    assert 0.003 < np.mean(good) < 0.007


def test_a_minimum_that_no_draw_reaches_ends_with_advice():
    with pytest.raises(InputError, match=r"alpha 0.01 .* 100 clients 40 rows in 20,000 draws; lower data.minimum"):
        split.dirichlet(np.repeat(np.arange(10), 600), 100, 0.01, 0, minimum=40)


def test_more_clients_than_rows_can_serve_are_refused_at_the_door():
    with pytest.raises(InputError, match=r"26 clients of at least 40 rows each .* ask for at most 25 clients"):
        split.dirichlet(np.repeat(np.arange(10), 100), 26, 0.1, 0, minimum=40)
    with pytest.raises(InputError, match="at most 3 clients"):
        split.iid(np.arange(3), 4, 0)


@given(clients=st.integers(1, 12), classes=st.integers(1, 5), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_every_client_has_exactly_its_number_of_classes_and_every_class_a_client(clients, classes, seed):
    labels = labels_of(seed)
    if clients * classes < 5:
        with pytest.raises(InputError, match="cannot hold all 5 classes"):
            split.classes_per_client(labels, clients, classes, seed)
        return
    held = split.classes_per_client(labels, clients, classes, seed)
    assert {len(np.unique(labels[rows])) for rows in held} == {classes}
    assert len(np.concatenate(held)) == len(labels)


@pytest.mark.parametrize(("clients", "classes"), [(100, 2), (20, 2), (7, 3), (37, 5), (20, 1)])
def test_with_classes_alike_clients_are_alike_in_size(clients: int, classes: int):
    sizes = [len(rows) for rows in split.classes_per_client(np.repeat(np.arange(10), 600), clients, classes, 0)]
    assert max(sizes) - min(sizes) <= classes + 1


def test_clients_do_not_all_hold_the_same_pairs_of_classes():
    labels = np.repeat(np.arange(10), 100)
    held = split.classes_per_client(labels, 50, 2, 0)
    assert len({tuple(np.unique(labels[rows])) for rows in held}) > 10


def test_more_classes_than_there_are_and_more_places_than_rows_are_refused():
    labels = np.repeat(np.arange(3), 4)
    with pytest.raises(InputError, match="classes_per_client is 4, but the data have 3 classes"):
        split.classes_per_client(labels, 2, 4, 0)
    with pytest.raises(InputError, match="more than 12 rows can serve"):
        split.classes_per_client(labels, 7, 2, 0)


@given(clients=populations, alpha=st.sampled_from([0.05, 0.5, 10.0]), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_with_replacement_no_client_draws_across_pools_and_all_are_equal_in_size(clients, alpha, seed):
    labels = labels_of(seed)
    train, test = np.split(np.random.default_rng(seed).permutation(len(labels)), [len(labels) * 3 // 4])
    held = split.dirichlet_replacement(labels, (train, test), clients, alpha, seed)
    assert len(held) == clients
    for own_train, own_test in held:
        assert np.isin(own_train, train).all()
        assert np.isin(own_test, test).all()
    assert len({(len(own_train), len(own_test)) for own_train, own_test in held}) == 1


def test_with_replacement_a_clients_train_and_test_rows_have_one_label_mix():
    labels = np.repeat(np.arange(10), 2000)
    train, test = np.split(np.random.default_rng(0).permutation(len(labels)), [10_000])
    for own_train, own_test in split.dirichlet_replacement(labels, (train, test), 5, 0.3, 0):
        mixes = [np.bincount(labels[rows], minlength=10) / len(rows) for rows in (own_train, own_test)]
        np.testing.assert_allclose(*mixes, atol=0.05)


def test_with_replacement_small_alpha_means_few_classes_per_client():
    labels = np.repeat(np.arange(10), 200)
    for alpha, few, many in ((0.05, 1, 4), (100.0, 9, 10)):
        held = split.dirichlet_replacement(labels, [np.arange(2000)], 20, alpha, 0)
        assert few <= np.mean([len(np.unique(labels[rows])) for (rows,) in held]) <= many


def test_with_replacement_needs_a_class_in_every_pool():
    with pytest.raises(InputError, match="No class has rows in every pool"):
        split.dirichlet_replacement(np.array([0, 1]), (np.array([0]), np.array([1])), 2, 1.0, 0)


def test_row_numbers_are_read_from_json_and_npz(tmp_path: Path):
    rows = [[4, 0], [1, 2, 3]]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    np.savez(tmp_path / "rows.npz", *[np.array(own) for own in rows])
    for name in ("rows.json", "rows.npz"):
        assert [own.tolist() for own in split.given(tmp_path / name, 6)] == [[0, 4], [1, 2, 3]]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[[0, 1], [1, 2]]", "row 1 more than once"),
        ("[[0, 0]]", "row 0 more than once"),
        ("[[0, 5]]", "row 5, but the data have rows 0 to 4"),
        ("[[0, -1]]", "row -1"),
        ("[[0.5]]", "client 0 must be a list of whole row numbers"),
        ('[[1], ["a"]]', "client 1 must be"),
        ("[[0], [[1, 2], [3]]]", "client 1 must be"),
        ("[0, 1]", "client 0 must be"),
        ("[]", "holds no clients"),
        ('{"0": [1]}', "must hold a list"),
        ("[[0, 1", "cannot be read"),
    ],
)
def test_row_numbers_that_cannot_be_right_are_refused_by_name(tmp_path: Path, content: str, complaint: str):
    file = tmp_path / "rows.json"
    file.write_text(content)
    with pytest.raises(InputError, match=f"rows.json.*{complaint}"):
        split.given(file, 5)


def test_a_file_of_row_numbers_that_is_missing_or_damaged_is_named(tmp_path: Path):
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    for name in ("none.json", "none.npz", "bad.npz"):
        with pytest.raises(InputError, match=f"{name} cannot be read"):
            split.given(tmp_path / name, 5)


def test_an_assignment_of_rows_becomes_rows_per_client():
    assert [rows.tolist() for rows in split.by_client(np.array([1, 0, 1, 2]))] == [[1], [0, 2], [3]]
