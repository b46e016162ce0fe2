"""Arithmetic on dicts of tensors, and trees of them."""

import copy
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import close, same

from fedlag import tree

law = settings(deadline=None)  # a busy machine is no counterexample

NAMES = ("a", "b", "head.weight", "head.bias", "body.0.weight")


class Pair(NamedTuple):
    first: object
    second: object


tensors = st.lists(st.integers(-5, 5), min_size=1, max_size=3).map(lambda values: torch.tensor(values).float())
leaves = st.one_of(tensors, st.integers(-3, 3), st.none(), st.just("text"))
names = st.sets(st.sampled_from(NAMES))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
    ),
    max_leaves=12,
)
params = st.dictionaries(st.sampled_from(NAMES), st.just((3,)), min_size=1).flatmap(
    lambda shapes: st.tuples(
        *(
            st.fixed_dictionaries(
                {
                    name: st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=3).map(torch.tensor)
                    for name in shapes
                }
            )
            for _ in range(2)
        )
    )
)


def paths(value, path=()):
    """Every place of a tree, with what stands there."""
    yield path, value
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from paths(entry, (*path, key))
    elif isinstance(value, tuple):
        for place, entry in enumerate(value):
            yield from paths(entry, (*path, place))


@law
@given(value=trees, names=names)
def test_without_removes_names_at_any_depth_and_nothing_else(value, names):
    before = copy.deepcopy(value)
    left = dict(paths(tree.without(value, names)))
    assert same(before, value)
    assert names.isdisjoint(tree.keys(tree.without(value, names)))
    kept = {path: entry for path, entry in paths(value) if names.isdisjoint(path)}
    assert left.keys() == kept.keys()
    for path, entry in kept.items():
        if not isinstance(entry, dict):
            assert type(left[path]) is type(entry)
            if not isinstance(entry, tuple):
                assert left[path] is entry


@law
@given(value=trees, names=names)
def test_without_twice_is_without_once(value, names):
    once = tree.without(value, names)
    assert same(tree.without(once, names), once)


def refreshed(value):
    """A tree of the same form with other leaves."""
    if isinstance(value, dict):
        return {key: refreshed(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tree.like(value, [refreshed(entry) for entry in value])
    return "fresh"


@law
@given(value=trees, names=names)
def test_renew_takes_names_from_the_fresh_tree_and_leaves_all_else(value, names):
    before, fresh = copy.deepcopy(value), refreshed(value)
    renewed = tree.renew(value, fresh, names)
    assert same(before, value)
    assert same(tree.without(renewed, names), tree.without(value, names))
    for path, entry in paths(renewed):
        if not names.isdisjoint(path) and not isinstance(entry, dict | tuple):
            assert entry == "fresh"
    for path, _ in paths(value):
        assert path in dict(paths(renewed))


@law
@given(value=trees, names=names)
def test_renew_puts_back_what_without_took(value, names):
    assert same(tree.renew(tree.without(value, names), value, names), value)


def test_renew_drops_what_the_fresh_tree_does_not_have():
    assert tree.renew({"a": 1, "b": 2}, {"b": 3}, {"a", "b"}) == {"b": 3}
    assert tree.renew({"a": 1}, {"b": 3}, {"b"}) == {"a": 1, "b": 3}


@law
@given(value=trees)
def test_keys_are_all_keys(value):
    assert set(tree.keys(value)) == {step for path, _ in paths(value) for step in path if isinstance(step, str)}


@pytest.mark.parametrize(
    "bad", [float("nan"), float("inf"), torch.tensor([0.0, float("nan")]), torch.tensor(-float("inf"))]
)
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: {"a": x}, lambda x: (1, {"b": (x, 2)}), lambda x: Pair(x, 1.0)]
)
def test_one_number_that_is_not_finite_anywhere_is_found(bad, wrap):
    assert not tree.finite(wrap(bad))
    assert tree.finite(wrap(1.0))
    assert tree.finite(wrap(torch.tensor([1, 2])))
    assert tree.finite(wrap(torch.full((3,), 3e38)))  # whose sum is not


def test_bytes_are_those_of_tensors():
    value = {"a": torch.zeros(3), "b": (torch.zeros(2, 2, dtype=torch.float64), 7, None, "text"), "c": Pair(0.5, {})}
    assert tree.nbytes(value) == 3 * 4 + 4 * 8
    assert tree.nbytes({}) == tree.nbytes(None) == 0


@law
@given(two=params, alpha=st.floats(-2, 2, width=32))
def test_arithmetic_is_that_of_the_tensors(two, alpha):
    a, b = two
    before = copy.deepcopy(two)
    assert same(tree.add(a, b), {name: a[name] + b[name] for name in a})
    assert close(tree.add(a, b, alpha), {name: a[name] + alpha * b[name] for name in a}, 1e-4)
    assert same(tree.sub(a, b), {name: a[name] - b[name] for name in a})
    assert same(tree.scale(a, alpha), {name: a[name] * alpha for name in a})
    assert same(tree.zeros_like(a), {name: torch.zeros(3) for name in a})
    flat = [torch.cat([one[name] for name in a]) for one in (a, b)]
    assert float(tree.dot(a, b)) == pytest.approx(float(flat[0] @ flat[1]), abs=1e-2)
    assert float(tree.sq_norm(a)) == pytest.approx(float(flat[0] @ flat[0]), rel=1e-4, abs=1e-6)
    assert same(before, two)


def test_the_first_tree_says_which_names():
    a, b = {"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)}
    assert tree.add(a, b).keys() == tree.sub(a, b).keys() == a.keys()
    assert float(tree.dot(a, b)) == 1
    assert float(tree.dot({}, {})) == 0


@law
@given(values=st.lists(st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=1, max_size=6), data=st.data())
def test_mean_is_the_weighted_sum_over_clients(values, data):
    weights = torch.tensor(data.draw(st.lists(st.floats(0.01, 1), min_size=len(values), max_size=len(values))))
    weights = (weights / weights.sum()).double()
    stacked = torch.tensor(values)
    expected = sum(weight * value for weight, value in zip(weights, stacked.double(), strict=True))
    mean = tree.mean({"a": stacked, "b": stacked.reshape(-1, 2, 2)}, weights)
    assert mean["a"].dtype == torch.float32
    assert torch.allclose(mean["a"].double(), expected, atol=1e-5)
    assert torch.equal(mean["b"].flatten(), mean["a"])
    one = tree.mean({"a": stacked[:1]}, torch.ones(1).double())
    assert torch.equal(one["a"], stacked[0])


def test_where_chooses_between_trees():
    a, b = {"a": torch.ones(2)}, {"a": torch.zeros(2)}
    assert tree.where(torch.tensor(True), a, b)["a"].tolist() == [1, 1]
    assert tree.where(torch.tensor([True, False]), a, b)["a"].tolist() == [1, 0]


def test_patterns_name_parameters():
    names = ["head.weight", "head.bias", "body.0.weight", "heading"]
    assert tree.under(names, "head.*") == {"head.weight", "head.bias"}
    assert tree.under(names, "head.weight body.*") == {"head.weight", "body.0.weight"}
    assert tree.under(names, "*.bias") == {"head.bias"}
    assert tree.under(names, "*") == set(names)
    assert tree.under(names, "") == tree.under(names, "HEAD.*") == set()


def test_select_keeps_order_and_ignores_names_there_are_not():
    assert list(tree.select({"b": 1, "a": 2, "c": 3}, {"a", "b", "z"})) == ["b", "a"]
