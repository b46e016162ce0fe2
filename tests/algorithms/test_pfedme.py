"""pFedMe: personal models as proximal points around the shared one."""

from dataclasses import dataclass

import pytest
import torch
from laws.federations import ALL, Cohorts, Wrapped, close, conv, mlp, ragged, run, same, scores, work
from torch.nn import functional

from fedlag import tree, twin
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.algorithms.pfedme import PFedMe
from fedlag.errors import InputError
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.run import evaluate

SOURCE = ragged()
ETA, CURVATURE, TARGET = 0.05, 2.0, 3.0
ONE_STEP = Training(batch=100, optimizer=SGD(lr=ETA))


@dataclass(frozen=True, kw_only=True)
class Quadratic(PFedMe):
    """f(own) = CURVATURE/2 |own - TARGET|^2, whatever the examples."""

    def loss(self, local, params, batch):
        own = tree.select(twin.second(params), local.net.parameter_names)
        return CURVATURE / 2 * sum((value - TARGET).square().sum() for value in own.values())


def exact(penalty, **settings):
    """With the one inner step that lands on the proximal point."""
    return Quadratic(penalty=penalty, inner_steps=1, personal_lr=1 / (CURVATURE + penalty), **settings)


def shared(params):
    return {name: value for name, value in params.items() if not name.startswith("own.")}


@pytest.mark.parametrize("penalty", [0.5, 15.0])
def test_on_a_quadratic_own_is_the_proximal_point_and_w_moves_toward_it(penalty):
    done = run(exact(penalty), net=mlp, number=1, training=ONE_STEP)
    w = done.rounds[0].message.shared
    pull = CURVATURE * penalty / (CURVATURE + penalty)
    assert close(shared(done.server.params), {n: v - ETA * pull * (v - TARGET) for n, v in w.items()})
    for client in done.federation.clients().values():
        point = {n: (CURVATURE * TARGET + penalty * v) / (CURVATURE + penalty) for n, v in w.items()}
        assert close(twin.second(client.params), point)


def test_many_inner_steps_reach_the_proximal_point_too():
    algorithm = Quadratic(penalty=15.0, inner_steps=200, personal_lr=0.02)
    many, one = (run(method, net=mlp, number=1, training=ONE_STEP) for method in (algorithm, exact(15.0)))
    assert close(shared(many.server.params), shared(one.server.params))


def test_with_a_strong_pull_w_takes_plain_gradient_steps():
    done = run(exact(1e4), net=mlp, number=1, training=ONE_STEP)
    w = done.rounds[0].message.shared
    assert close(shared(done.server.params), {n: v - ETA * CURVATURE * (v - TARGET) for n, v in w.items()}, 1e-3)


@pytest.mark.parametrize("net", [mlp, conv])
def test_without_a_pull_w_stays_and_own_is_plain_local_training(net):
    done = run(PFedMe(penalty=0.0, inner_steps=1, personal_lr=0.1), net=net, number=2, sampling=ALL)
    start = Model(net())
    assert same(
        tree.select(done.server.params, start.parameter_names), tree.select(start.init(), start.parameter_names)
    )
    local = run(FedAvg(personal=Named("*")), net=net, number=1, sampling=ALL)
    first = run(PFedMe(penalty=0.0, inner_steps=1, personal_lr=0.1), net=net, number=1, sampling=ALL)
    for client, kept in first.federation.clients().items():
        assert same(twin.second(kept.params), local.federation.clients()[client].params)


def test_inner_steps_go_on_from_one_batch_to_the_next_but_not_from_round_to_round():
    training = Training(steps=2, batch=100, optimizer=SGD(lr=ETA))
    done = run(Quadratic(penalty=15.0, inner_steps=3), net=mlp, clients=1, number=2, training=training)
    w = next(iter(done.rounds[0].message.shared.values()))
    for _ in range(2):
        own = w
        for _ in range(2):
            for _ in range(3):
                own = own - 0.01 * (CURVATURE * (own - TARGET) + 15.0 * (own - w))
            w = w - ETA * 15.0 * (w - own)
    assert torch.allclose(next(iter(done.server.params.values())), w, rtol=0, atol=1e-5)


def test_the_server_s_learning_rate_is_beta():
    whole, half = (run(exact(15.0, server=SGD(lr=lr)), net=mlp, number=1, training=ONE_STEP) for lr in (1.0, 0.5))
    w = whole.rounds[0].message.shared
    assert close(shared(half.server.params), tree.scale(tree.add(shared(whole.server.params), w), 0.5))


@pytest.mark.parametrize("net", [mlp, conv])
def test_the_personal_model_is_neither_the_local_copy_of_w_nor_the_shared_model(net):
    """In both public codes it is, because it is stored by reference."""
    done = run(PFedMe(), net=net, sampling=ALL)
    model = Model(net())
    model.eval()
    personal = evaluate(done.task, done.server, done.federation)
    for client, kept in done.federation.clients().items():
        own = twin.second(kept.params)
        assert not close(tree.select(own, model.parameter_names), shared(done.server.params), 1e-3)
        x, y = SOURCE(client, "test")
        loss = functional.cross_entropy(model(own, x), y).item()
        assert personal[client]["test"].loss == pytest.approx(loss, rel=1e-5)


def test_the_shared_model_s_batch_statistics_are_those_of_the_personal_models():
    done = run(PFedMe(), net=conv, number=1, wrap=Wrapped, sampling=Cohorts([[0]]))
    statistics = Model(conv()).statistic_names
    own = twin.second(done.federation.clients()[0].params)
    assert close(tree.select(done.server.params, statistics), tree.select(own, statistics), 1e-6)
    assert not close(tree.select(own, statistics), tree.select(Model(conv()).init(), statistics), 1e-2)


def test_a_client_nobody_has_met_runs_the_local_procedure_once_and_keeps_nothing():
    done = run(PFedMe(), net=mlp, sampling=Cohorts([[0, 1]]), number=2)
    everyone = scores(done)
    assert done.federation.clients().keys() == {0, 1}
    assert same(everyone, scores(done))
    model, start = Model(mlp()), shared(done.server.params)
    own, w = start, start
    for batch in work(SOURCE, 2, 4).stream("tune").batches(8, 1):
        for _ in range(5):
            leaves = {name: value.detach().requires_grad_() for name, value in own.items()}
            functional.cross_entropy(model(leaves, batch.x), batch.y).backward()
            own = {n: (v - 0.01 * (v.grad + 15.0 * (v - w[n]))).detach() for n, v in leaves.items()}
        w = {n: v - 0.1 * 15.0 * (v - own[n]) for n, v in w.items()}
    x, y = SOURCE(4, "test")
    loss = functional.cross_entropy(model(own, x), y).item()
    assert everyone["personal"][4]["test"].loss == pytest.approx(loss, rel=1e-4)


def test_the_global_stage_scores_the_shared_model():
    done = run(PFedMe(), net=conv)
    model = Model(conv())
    model.eval()
    for client, score in evaluate(done.task, done.server, done.federation, "global").items():
        x, y = SOURCE(client, "test")
        loss = functional.cross_entropy(model(shared(done.server.params), x), y).item()
        assert score["test"].loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("bad", [{"penalty": -1.0}, {"inner_steps": 0}, {"personal_lr": 0.0}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        PFedMe(**bad)
