"""Weights and the weighted mean."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import replies

from fedlag.aggregate import Mean
from fedlag.errors import InputError

law = settings(deadline=None)  # a busy machine is no counterexample

counts = st.lists(st.integers(1, 2**40), min_size=1, max_size=20)


def of(examples, weighting="samples"):
    updates = torch.randn(len(examples), 3, 2, generator=torch.Generator().manual_seed(len(examples)))
    return Mean(weighting=weighting), replies({"a": updates, "b": 2 * updates}, examples)


@law
@given(examples=counts, weighting=st.sampled_from(["samples", "uniform"]))
def test_weights_are_not_negative_and_sum_to_one(examples, weighting):
    mean, given_replies = of(examples, weighting)
    weights = mean.weights(given_replies)
    assert weights.shape == (len(examples),)
    assert weights.dtype == torch.float64
    assert (weights >= 0).all()
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)


def test_clients_count_by_their_examples_or_equally():
    assert Mean().weights(replies({"a": torch.zeros(3, 1)}, [1, 1, 2])).tolist() == [0.25, 0.25, 0.5]
    assert Mean(weighting="uniform").weights(replies({"a": torch.zeros(2, 1)}, [1, 99])).tolist() == [0.5, 0.5]


@law
@given(examples=counts, weighting=st.sampled_from(["samples", "uniform"]))
def test_the_mean_is_the_weighted_sum(examples, weighting):
    mean, given_replies = of(examples, weighting)
    weights, update = mean.weights(given_replies), mean(given_replies)
    for name, values in given_replies.update.items():
        expected = sum(weight * value for weight, value in zip(weights, values.double(), strict=True))
        assert update[name].shape == (3, 2)
        assert torch.allclose(update[name].double(), expected, atol=1e-6)


def test_with_equal_counts_both_weightings_agree():
    one, other = of([7, 7, 7])[0], of([7, 7, 7], "uniform")
    assert torch.equal(one(other[1])["a"], other[0](other[1])["a"])


def test_one_client_s_update_is_the_mean_bit_for_bit():
    mean, given_replies = of([5])
    assert torch.equal(mean(given_replies)["a"], given_replies.update["a"][0])


@pytest.mark.parametrize("weighting", ["sample", "", None, 3])
def test_another_weighting_is_refused(weighting):
    with pytest.raises(InputError, match=r"weighting = .*'samples', 'uniform'"):
        Mean(weighting=weighting)
