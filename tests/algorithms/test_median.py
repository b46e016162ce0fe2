"""The coordinate-wise median."""

import numpy as np
import pytest
import torch
from laws.federations import ALL, Wrapped, conv, run

from fedlag.aggregate import Mean, Median, blocks
from fedlag.aggregate.median import median
from fedlag.algorithms import REGISTRY

from .updates import draw, permuted, row, updates


def by_definition(values, weights):
    """The values with no more than half of the weight on either side; their mean if there are two."""
    fitting = [v for v in values if weights[values < v].sum() <= 0.5 + 1e-12 >= weights[values > v].sum()]
    return (min(fitting) + max(fitting)) / 2


@pytest.mark.parametrize("clients", [1, 2, 3, 6, 9])
def test_of_equal_weights_it_is_numpy_s(clients):
    rows = draw(clients, clients, 50)
    assert np.allclose(row(Median()(updates(rows))), np.median(rows, axis=0))


@pytest.mark.parametrize("examples", [[1, 2, 3, 4], [1, 1, 2], [9, 1, 1, 1], [2, 1, 1], [5, 3, 7, 1, 2, 6, 6]])
def test_of_unequal_weights_it_has_half_of_the_weight_on_either_side(examples):
    rows, weights = draw(2, len(examples), 30), np.array(examples) / sum(examples)
    expected = [by_definition(column, weights) for column in rows.numpy().T]
    given = updates(rows, examples=examples)
    assert np.allclose(row(Median(weighting="samples")(given)), expected)


def test_examples_are_a_claim_and_do_not_count_by_default():
    given = updates((1.0, 1.0), (2.0, 2.0), (100.0, 100.0), examples=[1, 1, 1000])
    assert row(Median()(given)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("worst", [1e30, -1e30])
def test_fewer_than_half_cannot_move_it_beyond_the_others(worst):
    honest = draw(3, 5, 20)
    made = row(Median()(updates(*honest.tolist(), *torch.full((4, 20), worst).tolist())))
    assert (honest.amin(0) <= made).all()
    assert (made <= honest.amax(0)).all()
    assert row(Mean()(updates(*honest.tolist(), [worst] * 20))).abs().min() > 1e28


def test_the_order_of_clients_does_not_matter():
    given = updates(*draw(4, 6, 30).tolist(), examples=[3, 1, 4, 1, 5, 9])
    for aggregator in (Median(), Median(weighting="samples")):
        assert torch.equal(row(aggregator(given)), row(aggregator(permuted(given, [5, 2, 0, 1, 4, 3]))))


def test_what_was_sent_is_left_as_it_was():
    """A single number for each client needs no copy to be sorted, and gets one."""
    sent = torch.tensor([3.0, 1.0, 2.0])
    given = updates(draw(0, 3, 2))._replace(update={"body.scale": sent})
    assert Median()(given)["body.scale"] == 2.0
    assert sent.tolist() == [3.0, 1.0, 2.0]


def test_large_layers_go_through_in_blocks(monkeypatch):
    given = updates(*draw(5, 4, 100).tolist())
    whole = row(Median()(given))
    monkeypatch.setattr(blocks, "CHUNK", 7)
    assert torch.equal(row(Median()(given)), whole)


def test_rounding_of_weights_does_not_hide_that_two_are_in_the_middle():
    for clients in range(2, 60, 2):
        values = torch.arange(clients).double()[:, None]
        weights = torch.full((clients,), 1 / clients, dtype=torch.float64)
        weights[0] += 1e-15  # not all equal any more
        assert median(values, weights).item() == (clients - 1) / 2


def test_the_method_moves_by_the_median_and_statistics_by_the_mean():
    done = run(REGISTRY["median"](), net=conv, number=1, sampling=ALL, wrap=Wrapped)
    ((message, _, replies),) = done.federation.heard
    for name, start in message.shared.items():
        sent = np.stack([reply.update[name].numpy() for reply in replies.values()])
        middle = sent.mean(0) if "running" in name else np.median(sent, axis=0)
        assert np.allclose(done.server.params[name].numpy(), start.numpy() + middle, atol=1e-6)
