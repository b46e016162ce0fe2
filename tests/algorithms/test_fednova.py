"""FedNova: what counts as work, and the mean per unit of it."""

import pytest
import torch
from laws.federations import ALL, SIZES, Wrapped, close, conv, mlp, run, same

from fedlag import tree
from fedlag.aggregate import Mean, Nova
from fedlag.algorithm import Training
from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.algorithms.fednova import FedNova, work
from fedlag.errors import InputError
from fedlag.optim import SGD, Adam

from .updates import draw, row, updates


def told(rows, amounts, **settings):
    return updates(*rows, **settings)._replace(extra={"work": torch.tensor(amounts).double()})


@pytest.mark.parametrize(("steps", "expected"), [(0, 0), (1, 1), (2, 2.9), (5, 13.1441)])
def test_work_with_momentum_is_that_of_the_paper(steps, expected):
    assert work(SGD(lr=0.02, momentum=0.9), steps) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("steps", [1, 4, 30])
def test_work_of_plain_steps_is_their_number_and_a_proximal_term_lessens_it(steps):
    lr, mu = 0.1, 0.5
    assert work(SGD(lr=lr), steps) == pytest.approx(steps)
    assert work(SGD(lr=lr), steps, mu) == pytest.approx((1 - (1 - lr * mu) ** steps) / (lr * mu))


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"weight_decay": 0.3}, {"momentum": 0.5, "weight_decay": 0.1}])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_work_is_the_sum_of_the_weights_of_all_gradients(settings, mu):
    """A gradient of one in a single step moves the end by its weight."""
    optimizer, steps, total = SGD(lr=0.05, **settings), 7, 0.0
    for chosen in range(steps):
        place = {"": torch.zeros((), dtype=torch.float64)}
        state = optimizer.init(place)
        for step in range(steps):
            place, state = optimizer.step(place, {"": float(step == chosen) + mu * place[""]}, state)
        total -= float(place[""]) / 0.05
    assert work(optimizer, steps, mu) == pytest.approx(total)


def test_work_of_adam_is_its_steps():
    assert work(Adam(lr=0.01), 6) == pytest.approx(6, rel=1e-5)


def test_two_clients_of_one_and_three_steps():
    """Their steps are the same: as in FedAvg. Their steps are opposite: nothing, while FedAvg follows the longer."""
    assert torch.allclose(row(Nova()(told([(1, 2), (3, 6)], [1, 3]))), torch.tensor([2.0, 4.0]).double())
    opposite = told([(1, 2), (-3, -6)], [1, 3])
    assert not row(Nova()(opposite)).any()
    assert torch.allclose(row(Mean()(opposite)), torch.tensor([-1.0, -2.0]).double())


@pytest.mark.parametrize("examples", [[1, 1, 1, 1], [5, 1, 2, 9]])
def test_equal_work_is_fedavg(examples):
    given = told(draw(0, 4, 9).tolist(), [7.0] * 4, examples=examples)
    assert torch.allclose(row(Nova()(given)), row(Mean()(given)), rtol=1e-12)


def test_the_formula_with_samples_and_unequal_work():
    rows, amounts, examples = draw(1, 4, 9), [1.0, 2.9, 13.1, 4.0], [5, 1, 2, 9]
    p, a = torch.tensor(examples) / sum(examples), torch.tensor(amounts)
    expected = (p * a).sum() * ((p / a)[:, None] * rows).sum(0)
    assert torch.allclose(row(Nova()(told(rows.tolist(), amounts, examples=examples))), expected, rtol=1e-6)


def test_who_did_nothing_is_left_out():
    given = told([(9, 9), (1, 2), (3, 4)], [0, 1, 1])
    assert torch.allclose(row(Nova()(given)), torch.tensor([2.0, 3.0]).double())
    assert not row(Nova()(told([(0, 0), (0, 0)], [0, 0]))).any()


def test_where_work_is_not_told_steps_count():
    given = updates((1, 2), (-3, -6))._replace(steps=torch.tensor([1, 3]))
    assert not row(Nova()(given)).any()


@pytest.mark.parametrize("net", [mlp, conv])
def test_with_as_many_steps_for_everybody_it_is_fedavg(net):
    training = Training(steps=3, batch=4, optimizer=SGD(lr=0.1, momentum=0.9))
    ours, plain = (run(algorithm, net=net, training=training).server.params for algorithm in (FedNova(), FedAvg()))
    assert close(ours, plain)


def test_clients_train_as_in_fedavg_and_tell_their_work_besides():
    training = Training(epochs=2, batch=8, optimizer=SGD(lr=0.1, momentum=0.9))
    ours, plain = (
        run(algorithm, number=1, sampling=ALL, training=training, wrap=Wrapped).federation.heard[0][2]
        for algorithm in (FedNova(), FedAvg())
    )
    for client, size in enumerate(SIZES):
        assert same(ours[client].update, plain[client].update)
        steps = 2 * -(-size // 8)
        assert float(ours[client].extra["work"]) == pytest.approx(sum((1 - 0.9**k) / 0.1 for k in range(1, steps + 1)))


def test_the_server_moves_by_the_normalised_mean_and_statistics_by_the_plain_one():
    ours, plain = (run(a, number=1, net=conv, sampling=ALL, wrap=Wrapped) for a in (FedNova(), FedAvg()))
    replies = ours.federation.heard[0][2]
    p = {client: size / sum(SIZES) for client, size in enumerate(SIZES)}
    mean_work = sum(p[client] * reply.steps for client, reply in replies.items())
    for name, start in ours.rounds[0].message.shared.items():
        per_step = sum(p[client] / reply.steps * reply.update[name] for client, reply in replies.items())
        expected = plain.server.params[name] if "running" in name else start + mean_work * per_step
        assert torch.allclose(ours.server.params[name], expected, atol=1e-6)


def test_the_proximal_term_is_fedprox_s():
    ours, theirs = (run(a, number=1, wrap=Wrapped) for a in (FedNova(mu=0.3), REGISTRY["fedprox"](mu=0.3)))
    for client, reply in ours.federation.heard[0][2].items():
        assert same(reply.update, theirs.federation.heard[0][2][client].update)
        assert float(reply.extra["work"]) == pytest.approx(work(SGD(lr=0.1), reply.steps, 0.3))
        assert tree.sq_norm(reply.update) > 0


def test_a_negative_mu_is_refused():
    with pytest.raises(InputError, match="mu"):
        FedNova(mu=-0.1)
