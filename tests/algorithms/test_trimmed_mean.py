"""The coordinate-wise trimmed mean."""

import numpy as np
import pytest
import torch

from fedlag.aggregate import Mean, Median, TrimmedMean, blocks
from fedlag.algorithms import REGISTRY
from fedlag.errors import InputError

from .updates import draw, permuted, row, updates


@pytest.mark.parametrize(("clients", "trimmed", "cut"), [(10, 0.1, 1), (10, 0.25, 2), (7, 0.3, 2), (100, 0.29, 29)])
def test_it_is_the_mean_of_what_remains(clients, trimmed, cut):
    rows = draw(clients, clients, 40)
    expected = np.sort(rows.numpy(), axis=0)[cut : clients - cut].mean(0)
    assert np.allclose(row(TrimmedMean(trimmed=trimmed)(updates(rows))), expected)


def test_weights_go_with_their_values():
    """Cut are 1 and 9; 2, 4 and 5 remain, of clients with 10, 30 and 40 examples."""
    given = updates([5.0], [1.0], [2.0], [9.0], [4.0], examples=[40, 7, 10, 7, 30])
    made = TrimmedMean(trimmed=0.2, weighting="samples")(given)
    assert made["body.weight"].item() == pytest.approx((2 * 10 + 4 * 30 + 5 * 40) / 80)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_trimming_it_is_the_mean(weighting):
    given = updates(*draw(0, 5, 30).tolist(), examples=[3, 1, 4, 1, 5])
    trimmed, mean = (kind(weighting=weighting) for kind in (lambda **s: TrimmedMean(trimmed=0.0, **s), Mean))
    assert torch.allclose(row(trimmed(given)), row(mean(given)))


def test_trimming_nearly_half_on_either_side_leaves_the_median():
    given = updates(*draw(1, 9, 30).tolist())
    assert torch.allclose(row(TrimmedMean(trimmed=0.49)(given)), row(Median()(given)))


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_of_few_clients_none_is_cut(clients):
    rows = draw(2, clients, 5)
    assert torch.allclose(row(TrimmedMean(trimmed=0.3)(updates(rows))), rows.mean(0))


@pytest.mark.parametrize("worst", [1e30, -1e30])
def test_no_more_outliers_than_are_cut_cannot_move_it_beyond_the_others(worst):
    honest = draw(3, 8, 20)
    made = row(TrimmedMean(trimmed=0.2)(updates(*honest.tolist(), *torch.full((2, 20), worst).tolist())))
    assert (honest.amin(0) <= made).all()
    assert (made <= honest.amax(0)).all()


def test_the_order_of_clients_does_not_matter():
    given = updates(*draw(4, 6, 30).tolist())
    aggregator = TrimmedMean(trimmed=0.2)
    assert torch.equal(row(aggregator(given)), row(aggregator(permuted(given, [5, 2, 0, 1, 4, 3]))))


def test_what_was_sent_is_left_as_it_was():
    """A single number for each client needs no copy to be sorted, and gets one."""
    sent = torch.tensor([3.0, 1.0, 2.0])
    given = updates(draw(0, 3, 2))._replace(update={"body.scale": sent})
    assert TrimmedMean(trimmed=0.3)(given)["body.scale"] == 2.0
    assert sent.tolist() == [3.0, 1.0, 2.0]


def test_large_layers_go_through_in_blocks(monkeypatch):
    given = updates(*draw(5, 4, 100).tolist())
    whole = row(TrimmedMean(trimmed=0.25)(given))
    monkeypatch.setattr(blocks, "CHUNK", 7)
    assert torch.equal(row(TrimmedMean(trimmed=0.25)(given)), whole)


def test_the_method_is_fedavg_with_this_aggregator():
    assert REGISTRY["trimmed-mean"]().aggregator == TrimmedMean(weighting="uniform", trimmed=0.1)


@pytest.mark.parametrize("trimmed", [-0.1, 0.5, float("nan"), "some"])
def test_a_share_that_leaves_nothing_is_refused(trimmed):
    with pytest.raises(InputError, match="trimmed"):
        TrimmedMean(trimmed=trimmed)
