"""Ditto: personal models pulled toward the shared one."""

from dataclasses import dataclass

import pytest
import torch
from laws.federations import ALL, Cohorts, close, conv, mlp, noisy, ragged, run, same, work
from torch.nn import functional

from fedlag import tree, twin
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.algorithms.ditto import Ditto
from fedlag.errors import InputError
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.run import evaluate

SOURCE = ragged()
CURVATURE, TARGET = 2.0, 3.0
each_net = pytest.mark.parametrize("net", [mlp, noisy])


@dataclass(frozen=True, kw_only=True)
class Quadratic(Ditto):
    """f(w) = CURVATURE/2 |w - TARGET|^2, whatever the examples."""

    def loss(self, local, params, batch):
        own = tree.select(params, local.net.parameter_names)
        return CURVATURE / 2 * sum((value - TARGET).square().sum() for value in own.values())


def shared(params):
    return {name: value for name, value in params.items() if not name.startswith("own.")}


@each_net
@pytest.mark.parametrize("settings", [{}, {"penalty": 0.0}, {"personal_epochs": 3}, {"personal_epochs": 0}])
def test_the_shared_models_are_bitwise_those_of_fedavg(settings, net):
    ditto, fedavg = run(Ditto(**settings), net=net), run(FedAvg(), net=net)
    for one, other in zip(ditto.rounds, fedavg.rounds, strict=True):
        assert same(shared(one.server.params), other.server.params)
    assert same(*(evaluate(done.task, done.server, done.federation, "global") for done in (ditto, fedavg)))


@each_net
def test_without_a_pull_the_personal_models_are_bitwise_those_of_local(net):
    ditto, local = (run(method, net=net, sampling=ALL) for method in (Ditto(penalty=0.0), FedAvg(personal=Named("*"))))
    for client, kept in local.federation.clients().items():
        assert same(twin.second(ditto.federation.clients()[client].params), kept.params)
    assert same(*(evaluate(done.task, done.server, done.federation) for done in (ditto, local)))


@pytest.mark.parametrize("penalty", [0.1, 1.0, 2.0])
def test_on_a_quadratic_own_comes_to_rest_between_its_optimum_and_what_was_received(penalty):
    """The model received, not the one trained from it, and the same for every client."""
    training = Training(batch=100, optimizer=SGD(lr=1 / (CURVATURE + penalty)))
    done = run(Quadratic(penalty=penalty), net=mlp, number=2, training=training, sampling=ALL)
    received = done.rounds[1].message.shared
    rest = {n: (CURVATURE * TARGET + penalty * w) / (CURVATURE + penalty) for n, w in received.items()}
    for client in done.federation.clients().values():
        assert close(twin.second(client.params), rest, 1e-5)
    many = run(Quadratic(penalty=penalty, personal_epochs=40), net=mlp, number=2, sampling=ALL)
    received = many.rounds[1].message.shared
    rest = {n: (CURVATURE * TARGET + penalty * w) / (CURVATURE + penalty) for n, w in received.items()}
    assert close(twin.second(many.federation.clients()[0].params), rest, 1e-5)


def test_a_newcomer_s_own_model_opens_as_the_model_it_received():
    late = run(Ditto(personal_epochs=0), net=conv, number=3, sampling=Cohorts([[0], [0], [1]]))
    assert same(twin.second(late.federation.clients()[1].params), late.rounds[2].message.shared)


def test_one_that_stays_away_keeps_its_own_model():
    done = run(Ditto(), net=conv, number=1, sampling=Cohorts([[0, 1]]))
    more = run(Ditto(), net=conv, number=3, sampling=Cohorts([[0, 1], [1]]))
    assert same(done.federation.clients()[0], more.federation.clients()[0])


def test_clients_are_scored_on_their_own_models_and_newcomers_after_personal_steps_that_are_thrown_away():
    done = run(Ditto(), net=mlp, sampling=Cohorts([[0, 1]]), number=2)
    scores = evaluate(done.task, done.server, done.federation)
    assert same(scores, evaluate(done.task, done.server, done.federation))
    assert done.federation.clients().keys() == {0, 1}
    model, start = Model(mlp()), shared(done.server.params)
    tuned = start
    for batch in work(SOURCE, 2, 4).stream("tune").batches(8, 1):
        leaves = {name: value.detach().requires_grad_() for name, value in tuned.items()}
        functional.cross_entropy(model(leaves, batch.x), batch.y).backward()
        tuned = {n: (v - 0.1 * (v.grad + (v - start[n]))).detach() for n, v in leaves.items()}
    own = {0: twin.second(done.federation.clients()[0].params), 4: tuned}
    for client, params in own.items():
        x, y = SOURCE(client, "test")
        assert scores[client]["test"].loss == pytest.approx(
            functional.cross_entropy(model(params, x), y).item(), rel=1e-5
        )


def test_weight_decay_touches_each_model_in_its_own_training_only():
    training = Training(batch=8, optimizer=SGD(lr=0.1, momentum=0.5, weight_decay=0.1))
    ditto, fedavg = (run(method, net=mlp, training=training) for method in (Ditto(personal_epochs=0), FedAvg()))
    assert same(shared(ditto.server.params), fedavg.server.params)
    kept = next(iter(ditto.federation.clients().values()))
    assert torch.equal(kept.params["own.head.weight"], mlp().head.weight)


@pytest.mark.parametrize("bad", [{"penalty": -1.0}, {"personal_epochs": -1}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Ditto(**bad)
