"""GradDrop: one sign for every coordinate."""

import pytest
import torch

from fedlag.aggregate import GradDrop, Mean, blocks
from fedlag.aggregate.graddrop import one_sign
from fedlag.algorithms import REGISTRY
from fedlag.errors import InputError

from .updates import draw, permuted, row, updates


def parts(rows, weights=None):
    """What the positive and what the negative updates would give alone."""
    weights = torch.full((len(rows),), 1 / len(rows)).double() if weights is None else weights
    return weights @ rows.clamp(min=0), weights @ rows.clamp(max=0)


def test_every_coordinate_is_moved_by_one_sign_only():
    rows = draw(0, 5, 200)
    up, down = parts(rows)
    made = row(GradDrop()(updates(rows)))
    assert (torch.isclose(made, up) ^ torch.isclose(made, down)).all()
    assert torch.isclose(made, up).any()
    assert torch.isclose(made, down).any()


def test_where_all_agree_nothing_is_dropped():
    rows = draw(1, 5, 50).abs()
    for sign in (1, -1):
        made = row(GradDrop()(updates(sign * rows)))
        assert torch.allclose(made, sign * rows.mean(0))


def test_where_nobody_moves_nothing_happens():
    assert not row(GradDrop()(updates(torch.zeros(3, 20)))).any()


def test_on_average_over_all_signs_it_is_the_mean():
    """Exactly: positive with probability up / (up - down)."""
    rows, weights = draw(2, 4, 30), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    levels = (torch.arange(20_000) + 0.5).double() / 20_000
    made = torch.stack([one_sign(rows, weights, level.expand(30)) for level in levels[::20]]).mean(0)
    scale = parts(rows, weights)[0] - parts(rows, weights)[1]
    assert ((made - weights @ rows).abs() <= 2e-3 * scale).all()


def test_over_many_rounds_it_is_the_mean():
    given = updates(draw(3, 4, 10))
    made = torch.stack([row(GradDrop()(given._replace(round=round))) for round in range(600)])
    error = (made.mean(0) - row(Mean(weighting="uniform")(given))).abs()
    assert (error < 5 * made.std(0) / 600**0.5).all()
    assert made.std(0).min() > 0


def test_tiny_updates_are_dropped_as_large_ones_are():
    rows = draw(4, 5, 50)
    assert torch.allclose(row(GradDrop()(updates(1e-20 * rows))), 1e-20 * row(GradDrop()(updates(rows))))


def test_samples_weigh_in_the_sign_and_in_the_mean():
    rows, examples = draw(5, 3, 100), [1, 2, 7]
    up, down = parts(rows, torch.tensor(examples).double() / 10)
    made = row(GradDrop(weighting="samples")(updates(rows, examples=examples)))
    assert (torch.isclose(made, up) | torch.isclose(made, down)).all()


def test_signs_are_drawn_anew_in_every_round_and_for_every_seed():
    given = updates(draw(6, 4, 100))
    made = row(GradDrop()(given))
    assert torch.equal(made, row(GradDrop()(given)))
    assert not torch.equal(made, row(GradDrop()(given._replace(round=1))))
    assert not torch.equal(made, row(GradDrop(seed=1)(given)))


def test_a_layer_s_signs_do_not_depend_on_the_others():
    given = updates(draw(7, 4, 100))
    alone = given._replace(update={"head.weight": given.update["head.weight"]})
    assert torch.equal(GradDrop()(alone)["head.weight"], GradDrop()(given)["head.weight"])


def test_layers_draw_signs_of_their_own():
    rows = draw(7, 4, 100)
    given = updates(rows)._replace(update={"body.weight": rows, "head.weight": rows})
    made = GradDrop()(given)
    assert not torch.equal(made["body.weight"], made["head.weight"])


def test_the_order_of_clients_does_not_matter():
    given = updates(draw(8, 5, 100))
    assert torch.allclose(row(GradDrop()(given)), row(GradDrop()(permuted(given, [4, 2, 0, 1, 3]))))


def test_large_layers_go_through_in_blocks(monkeypatch):
    given = updates(draw(9, 4, 100))
    whole = row(GradDrop()(given))
    monkeypatch.setattr(blocks, "CHUNK", 7)
    assert torch.allclose(row(GradDrop()(given)), whole)


def test_the_method_is_fedavg_with_this_aggregator():
    assert REGISTRY["graddrop"]().aggregator == GradDrop(weighting="uniform")


def test_a_negative_seed_is_refused():
    with pytest.raises(InputError, match="seed"):
        GradDrop(seed=-1)
