"""FedEXP: how far along the mean, and what is evaluated."""

import numpy as np
import pytest
import torch
from laws.federations import ALL, Scheduled, close, conv, identical, mlp, run, same, scores

from fedlag.aggregate import Extrapolated, Mean
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.algorithms.fedexp import FedEXP
from fedlag.errors import InputError
from fedlag.optim import SGD
from fedlag.run import evaluate

from .updates import draw, row, updates

UNIFORM = FedAvg(aggregator=Mean(weighting="uniform"))


def by_formula(rows, weights, epsilon):
    rows = np.asarray(rows)
    mean = weights @ rows
    return max(1.0, weights @ (rows**2).sum(1) / (2 * ((mean**2).sum() + epsilon)))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_factor_is_that_of_the_paper_and_never_below_one(seed, weighting):
    rows, examples = draw(seed, 6, 40), [3, 1, 4, 1, 5, 9]
    weights = np.array(examples) / sum(examples) if weighting == "samples" else np.full(6, 1 / 6)
    given, aggregator = updates(rows, examples=examples), Extrapolated(weighting=weighting, epsilon=0.1)
    factor = aggregator.factor(given)
    assert factor == pytest.approx(by_formula(rows, weights, 0.1))
    assert factor >= 1
    assert np.allclose(row(aggregator(given)), factor * weights @ rows.numpy())


def test_clients_that_agree_are_averaged_bit_for_bit():
    given = updates((0.1, 0.7, -0.3), (0.1, 0.7, -0.3), (0.1, 0.7, -0.3), dtype=torch.float32)
    assert Extrapolated().factor(given) == 1
    assert same(Extrapolated()(given), Mean(weighting="uniform")(given))


@pytest.mark.parametrize("clients", [2, 3, 8])
def test_orthogonal_updates_of_one_length_are_extrapolated_by_half_their_number(clients):
    assert Extrapolated(epsilon=0.0).factor(updates(5 * torch.eye(clients))) == pytest.approx(clients / 2)


def test_a_single_client_is_not_extrapolated():
    assert Extrapolated(epsilon=0.0).factor(updates([(3.0, 4.0)])) == 1


def test_tiny_updates_are_measured_in_double_precision():
    given = updates(1e-25 * torch.eye(6), dtype=torch.float32)  # whose squares are zero in single precision
    assert Extrapolated(epsilon=0.0).factor(given) == pytest.approx(3.0)


def test_updates_that_cancel_give_no_step_however_small_epsilon():
    assert not row(Extrapolated(epsilon=0.0)(updates((1.0, 2.0), (-1.0, -2.0)))).any()
    assert Extrapolated(epsilon=0.0).factor(updates((0.0, 0.0), (0.0, 0.0))) == 1


def test_epsilon_fades_as_it_is_told():
    given = updates(*torch.eye(4).tolist())
    later = Extrapolated(epsilon=0.4, decay=0.25).factor(given._replace(round=2))
    assert later == Extrapolated(epsilon=0.025).factor(given)


def test_clients_that_agree_train_as_in_fedavg():
    training = Training(batch=10, optimizer=SGD(lr=0.1))
    setup = {"net": mlp, "source": identical(), "clients": 4, "training": training, "sampling": ALL}
    assert same(run(FedEXP(), **setup).server.params, run(UNIFORM, **setup).server.params)


def test_what_is_evaluated_is_the_mean_of_the_last_two_models():
    done = run(FedEXP(aggregator=Extrapolated(epsilon=0.0)), net=mlp, number=3)
    before, last = done.rounds[1].server.params, done.rounds[2].server.params
    halfway = {name: (before[name] + last[name]) / 2 for name in last}
    assert not close(before, last, 1e-3)
    assert close(done.task.algorithm.deployed(done.server), halfway)

    module = mlp()
    module.load_state_dict(halfway)
    scored = scores(done)
    for stage in ("personal", "global"):
        for client, parts in scored[stage].items():
            x, y = done.federation.source(client, "test")
            expected = torch.nn.functional.cross_entropy(module(x), y).item()
            assert parts["test"].loss == pytest.approx(expected, rel=1e-4)


def test_training_goes_on_from_the_last_model():
    done = run(FedEXP(), net=mlp, number=3)
    for one, following in zip(done.rounds, done.rounds[1:], strict=False):
        assert same(following.message.shared, one.server.params)


def test_before_the_first_round_the_initial_model_is_evaluated():
    done = run(FedEXP(), net=mlp, number=0)
    assert same(done.task.algorithm.deployed(done.server), done.server.params)


class Thrice(Extrapolated):
    def factor(self, replies):
        return 3.0


def test_statistics_are_averaged_and_never_extrapolated():
    done, plain = (run(a, net=conv, number=1) for a in (FedEXP(aggregator=Thrice()), UNIFORM))
    for name, start in done.rounds[0].message.shared.items():
        times = 1 if "running" in name else 3
        expected = start + times * (plain.server.params[name] - start)
        assert torch.allclose(done.server.params[name], expected, atol=1e-6)


def test_what_is_personal_enters_neither_the_factor_nor_the_mean_of_two():
    class Heard(Extrapolated):
        def __call__(self, replies):
            heard.append(replies)
            return super().__call__(replies)

    heard = []
    algorithm = FedEXP(personal=Scheduled(("", "head.*")), aggregator=Heard(epsilon=0.0))
    done = run(algorithm, net=mlp, number=3, sampling=ALL)
    for replies in heard[1:]:
        assert not any(name.startswith("head.") for name in replies.update)
    server = done.server
    assert same(algorithm.deployed(server)["head.weight"], server.params["head.weight"])
    body, before = server.params["body.1.weight"], done.rounds[1].server.params["body.1.weight"]
    assert torch.allclose(algorithm.deployed(server)["body.1.weight"], (body + before) / 2)
    assert len(evaluate(done.task, server, done.federation)) == 5


@pytest.mark.parametrize("settings", [{"epsilon": -1.0}, {"decay": 0.0}, {"weighting": "loud"}])
def test_settings_that_make_no_sense_are_refused(settings):
    (name,) = settings
    with pytest.raises(InputError, match=name):
        Extrapolated(**settings)
