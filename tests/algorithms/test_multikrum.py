"""Multi-Krum: the mean of those with close neighbours."""

import numpy as np
import pytest
import torch

from fedlag.aggregate import Mean, MultiKrum, blocks
from fedlag.aggregate.multikrum import remoteness
from fedlag.algorithms import REGISTRY
from fedlag.errors import InputError

from .updates import draw, permuted, row, updates


def by_definition(rows, suspects):
    rows, scores = np.asarray(rows), []
    for one in rows:
        distances = sorted(((other - one) ** 2).sum() for other in rows)[1:]  # without itself
        scores.append(sum(distances[: max(len(rows) - suspects - 2, 1)]))
    return np.argsort(scores)[: len(rows) - suspects]


def test_a_client_is_judged_by_the_m_minus_f_minus_2_others_nearest_to_it():
    """At 0, 1, 3, 7 and 15 on a line: two neighbours each if one of the five is suspect, one if two are."""
    places = torch.tensor([0.0, 1.0, 3.0, 7.0, 15.0]).double()
    gram = torch.outer(places, places)
    assert remoteness(gram, 1).tolist() == [1 + 9, 1 + 4, 4 + 9, 16 + 36, 64 + 144]
    assert remoteness(gram, 2).tolist() == [1, 1, 4, 16, 64]
    assert remoteness(gram[:2, :2], 0).tolist() == [1, 1]
    assert remoteness(gram[:1, :1], 0).tolist() == [0]


@pytest.mark.parametrize(("clients", "share", "suspects"), [(10, 0.2, 2), (10, 0.35, 3), (7, 0.3, 2), (100, 0.29, 29)])
def test_it_is_the_mean_of_the_clients_nearest_to_their_neighbours(clients, share, suspects):
    rows = draw(clients, clients, 40)
    expected = rows[by_definition(rows, suspects)].mean(0)
    assert torch.allclose(row(MultiKrum(byzantine=share)(updates(rows))), expected)


def test_the_chosen_count_by_their_weights():
    given = updates((1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (900.0, 9.0), examples=[1, 2, 5, 1000])
    made = MultiKrum(byzantine=0.25, weighting="samples")(given)
    assert torch.allclose(row(made), torch.tensor([(1 + 4 + 15) / 8, 0.0]).double())


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_suspects_it_is_the_mean(weighting):
    given = updates(*draw(0, 5, 30).tolist(), examples=[3, 1, 4, 1, 5])
    assert torch.allclose(
        row(MultiKrum(byzantine=0.0, weighting=weighting)(given)), row(Mean(weighting=weighting)(given))
    )


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_few_clients_are_all_taken(clients):
    rows = draw(2, clients, 5)
    assert torch.allclose(row(MultiKrum(byzantine=0.3)(updates(rows))), rows.mean(0))


def test_outliers_change_nothing():
    honest, far = draw(3, 8, 20), 1e6 * draw(4, 2, 20)
    with_far = row(MultiKrum(byzantine=0.2)(updates(*honest.tolist(), *far.tolist())))
    assert torch.allclose(with_far, honest.mean(0))


def test_colluders_that_agree_are_outnumbered():
    """Three of ten send the same: they have no neighbours but each other."""
    honest = 0.1 * draw(5, 7, 20) / draw(5, 7, 20).norm(dim=1, keepdim=True)
    made = row(MultiKrum(byzantine=0.3)(updates(*honest.tolist(), *torch.full((3, 20), 2.0).tolist())))
    assert torch.allclose(made, honest.mean(0))


def test_the_order_of_clients_does_not_matter():
    given = updates(*draw(6, 7, 30).tolist())
    aggregator = MultiKrum(byzantine=0.3)
    assert torch.allclose(row(aggregator(given)), row(aggregator(permuted(given, [5, 2, 0, 6, 1, 4, 3]))))


def test_of_clients_as_good_as_each_other_the_first_by_number_is_taken():
    given = updates((0.0, 0.0), (1.0, 0.0), (10.0, 0.0), (11.0, 0.0))
    aggregator = MultiKrum(byzantine=0.25)
    assert torch.allclose(row(aggregator(given)), row(aggregator(permuted(given, [3, 1, 2, 0]))))
    assert row(aggregator(given))[0].item() == pytest.approx((0 + 1 + 10) / 3)


def test_updates_go_through_in_blocks(monkeypatch):
    given = updates(*draw(7, 6, 100).tolist())
    whole = row(MultiKrum(byzantine=0.2)(given))
    monkeypatch.setattr(blocks, "CHUNK", 7)
    assert torch.allclose(row(MultiKrum(byzantine=0.2)(given)), whole)


def test_the_method_is_fedavg_with_this_aggregator():
    assert REGISTRY["multikrum"]().aggregator == MultiKrum(weighting="uniform", byzantine=0.1)


@pytest.mark.parametrize("byzantine", [-0.1, 0.5, float("nan"), "some"])
def test_a_majority_of_suspects_is_refused(byzantine):
    with pytest.raises(InputError, match="byzantine"):
        MultiKrum(byzantine=byzantine)
