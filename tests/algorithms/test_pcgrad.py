"""PCGrad: projections of conflicting updates."""

import numpy as np
import pytest
import torch
from laws.federations import ALL, identical, mlp, run, same

from fedlag.aggregate import Mean, PCGrad, blocks
from fedlag.algorithm import Training
from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.errors import InputError
from fedlag.optim import SGD

from .updates import draw, permuted, row, updates

UNIFORM = Mean(weighting="uniform")


def by_definition(rows, clients, others):
    """The paper's loop over tasks, on whole vectors."""
    projected = []
    for client, order in zip(clients.tolist(), others.tolist(), strict=True):
        mine = rows[client].clone()
        for other in order:
            product = mine @ rows[other]
            if product < 0:
                mine -= product / (rows[other] @ rows[other]) * rows[other]
        projected.append(mine)
    return torch.stack(projected)


@pytest.mark.parametrize("clients", [2, 3, 7, 20])
def test_it_is_the_paper_s_loop(clients):
    rows = draw(clients, clients, 5)
    given, aggregator = updates(rows), PCGrad(seed=3)
    expected = by_definition(rows, *aggregator.orders(given)).mean(0)
    assert torch.allclose(row(aggregator(given)), expected)
    assert not torch.allclose(row(UNIFORM(given)), expected)


def test_two_clients_worked_out_on_paper():
    """(1, 0) becomes (0.8, 0.4), (-1/2, 1) becomes (0, 1)."""
    assert torch.allclose(row(PCGrad()(updates((1, 0), (-0.5, 1)))), torch.tensor([0.4, 0.7]).double())


def test_of_two_clients_each_is_left_without_a_part_against_the_other():
    for seed in range(5):
        a, b = rows = draw(seed, 2, 9)
        if a @ b > 0:
            a.neg_()
        made = by_definition(rows, torch.tensor([0, 1]), torch.tensor([[1], [0]]))
        assert abs(float(made[0] @ b)) < 1e-9 * float(a.norm() * b.norm())
        assert torch.allclose(row(PCGrad()(updates(rows))), made.mean(0))


def test_opposite_updates_cancel():
    assert not row(PCGrad()(updates((1, 2), (-3, -6)))).abs().max() > 1e-12


def test_without_conflicts_it_is_fedavg_bit_for_bit():
    given = updates(draw(0, 5, 30).abs(), dtype=torch.float32)
    for scope in ("model", "layer"):
        assert same(PCGrad(scope=scope)(given), UNIFORM(given))


def test_clients_that_agree_train_as_in_fedavg():
    training = Training(batch=10, optimizer=SGD(lr=0.1))
    setup = {"net": mlp, "source": identical(), "clients": 4, "training": training, "sampling": ALL}
    pcgrad, fedavg = (run(a, **setup) for a in (REGISTRY["pcgrad"](), FedAvg(aggregator=UNIFORM)))
    assert same(pcgrad.server.params, fedavg.server.params)


def test_updates_twice_as_long_give_twice_the_result():
    rows = draw(1, 6, 4)
    assert torch.allclose(2 * row(PCGrad()(updates(rows))), row(PCGrad()(updates(2 * rows))))


def test_a_client_that_did_not_move_is_no_obstacle():
    rows = torch.cat([draw(2, 2, 6), torch.zeros(1, 6)])
    two = row(PCGrad()(updates(rows[:2])))
    assert torch.allclose(row(PCGrad()(updates(rows))), two * 2 / 3)


def test_with_samples_updates_are_lengthened_by_their_weight_first():
    rows, examples = draw(3, 4, 5), [3, 1, 4, 8]
    weighted = rows * (4 * torch.tensor(examples)[:, None] / 16)
    made = PCGrad(weighting="samples")(updates(rows, examples=examples))
    assert torch.allclose(row(made), row(PCGrad()(updates(weighted))))


def test_layer_by_layer_each_is_projected_on_its_own():
    """Their bodies conflict, their heads do not, and together they do not."""
    given = updates((1.0, 1.0, 0.0), (-0.5, 1.0, 1.0))
    assert torch.allclose(row(PCGrad()(given)), row(UNIFORM(given)))
    assert torch.allclose(row(PCGrad(scope="layer")(given)), torch.tensor([0.0, 1.0, 0.5]).double())


def test_weight_and_bias_are_one_layer():
    update = {"head.weight": draw(4, 5, 6), "head.bias": draw(5, 5, 2), "body.weight": draw(6, 5, 3)}
    given = updates(draw(0, 5, 2))
    whole = PCGrad(scope="layer")(given._replace(update=update))
    head = {name: update[name] for name in ("head.weight", "head.bias")}
    assert same(PCGrad()(given._replace(update=head)), {name: whole[name] for name in head})


def test_orders_belong_to_clients_and_change_from_round_to_round():
    given = updates(draw(7, 6, 4))
    made = row(PCGrad()(given))
    assert torch.allclose(row(PCGrad()(permuted(given, [5, 2, 0, 1, 4, 3]))), made)
    assert not torch.allclose(row(PCGrad()(given._replace(round=1))), made)
    assert not torch.allclose(row(PCGrad(seed=1)(given)), made)


def test_every_order_of_others_is_as_likely():
    given = updates(draw(0, 3, 3))
    seen = [tuple(PCGrad().orders(given._replace(round=round))[1][0].tolist()) for round in range(200)]
    assert set(seen) == {(1, 2), (2, 1)}
    assert 70 < seen.count((1, 2)) < 130


def test_updates_go_through_in_blocks(monkeypatch):
    given = updates(draw(8, 6, 100))
    whole = row(PCGrad()(given))
    monkeypatch.setattr(blocks, "CHUNK", 7)
    assert np.allclose(row(PCGrad()(given)), whole)


@pytest.mark.parametrize("settings", [{"scope": "world"}, {"seed": -1}, {"weighting": "loud"}])
def test_settings_that_make_no_sense_are_refused(settings):
    (name,) = settings
    with pytest.raises(InputError, match=name):
        PCGrad(**settings)
