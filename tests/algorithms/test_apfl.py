"""APFL: personal models as mixtures of a private and the shared one."""

import pytest
from laws.federations import ALL, Cohorts, close, conv, mlp, noisy, ragged, run, same, work
from torch.nn import functional

from fedlag import twin
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.algorithms.apfl import APFL, MIXES, SHARE
from fedlag.errors import InputError
from fedlag.flow import Client
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.round import address, broadcast, client_round
from fedlag.run import evaluate

SOURCE = ragged()
ETA = 0.1
each_mix = pytest.mark.parametrize("mix", MIXES)
each_net = pytest.mark.parametrize("net", [mlp, noisy])


def shared(params):
    return {name: value for name, value in params.items() if not name.startswith("own.")}


def private(client):
    return {name: value for name, value in twin.second(client.params).items() if name != "alpha"}


@each_net
@each_mix
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_shared_models_are_bitwise_those_of_fedavg(net, mix, adaptive):
    apfl, fedavg = run(APFL(mix=mix, adaptive=adaptive), net=net), run(FedAvg(), net=net)
    for one, other in zip(apfl.rounds, fedavg.rounds, strict=True):
        assert same(shared(one.server.params), other.server.params)
    assert same(*(evaluate(done.task, done.server, done.federation, "global") for done in (apfl, fedavg)))


@each_net
@each_mix
def test_with_alpha_one_the_private_models_are_bitwise_those_of_local(net, mix):
    apfl, local = (
        run(method, net=net, sampling=ALL) for method in (APFL(alpha=1.0, mix=mix), FedAvg(personal=Named("*")))
    )
    for client, kept in local.federation.clients().items():
        assert same(private(apfl.federation.clients()[client]), kept.params)
    assert same(*(evaluate(done.task, done.server, done.federation) for done in (apfl, local)))


@each_mix
def test_with_alpha_zero_the_private_model_never_moves_and_everybody_uses_the_shared_one(mix):
    done = run(APFL(alpha=0.0, mix=mix), net=mlp, sampling=ALL)
    for client in done.federation.clients().values():
        assert same(private(client), Model(mlp()).init())
    assert same(*(evaluate(done.task, done.server, done.federation, stage) for stage in ("personal", "global")))


@each_mix
@pytest.mark.parametrize("gap", [1.0, 30.0])
def test_a_step_is_the_papers(mix, gap):
    """Both models and alpha move along gradients at the values before the step; alpha stays in [0, 1]."""
    training = Training(batch=100, optimizer=SGD(lr=ETA))
    algorithm = APFL(alpha=0.3, adaptive=True, mix=mix)
    before = run(algorithm, net=mlp, number=1, sampling=ALL)
    message, letter = broadcast(before.task, before.server), address(before.task, before.server, 0)
    task = run(algorithm, net=mlp, number=0, training=training).task
    known = before.federation.clients()[0]
    far = {name: gap * value for name, value in known.params.items() if name != SHARE}
    known = known._replace(params={**known.params, **far})
    after, _ = client_round(task, message, letter, known, work(SOURCE, 1, 0))

    model, (x, y) = Model(mlp()), SOURCE(0, "train")
    w, v, alpha = message.shared, private(known), known.params[SHARE].clone()
    assert not close(w, v, 1e-3)

    def at_mixture(w, v):
        if mix == "logits":
            return functional.cross_entropy(alpha * model(v, x) + (1 - alpha) * model(w, x), y)
        return functional.cross_entropy(model({n: alpha * v[n] + (1 - alpha) * w[n] for n in w}, x), y)

    leaves = [{n: value.clone().requires_grad_() for n, value in model.items()} for model in (w, v)]
    at_mixture(*leaves).backward()
    assert close(private(after), {n: v[n] - ETA * leaves[1][n].grad for n in v}, 1e-5)
    alpha.requires_grad_()
    at_mixture(w, v).backward()
    expected = (alpha - ETA * alpha.grad).clamp(0, 1).item()
    assert after.params[SHARE].item() == pytest.approx(expected, abs=1e-5)
    assert (expected == 0) is (gap > 1)
    if mix == "parameters":  # the paper's formula; the gradient for v is alpha times the one at the mixture
        slope = sum(((v[n] - w[n]) * leaf.grad).sum() for n, leaf in leaves[1].items()) / alpha
        assert alpha.grad.item() == pytest.approx(slope.item(), rel=1e-4)


def test_alpha_moves_on_the_first_batch_of_a_round_only():
    """In the first round the two models are still equal on that batch, so alpha has no slope there."""
    training = Training(steps=5, batch=4, optimizer=SGD(lr=ETA))
    first, second = (
        run(APFL(adaptive=True), net=mlp, number=number, sampling=ALL, training=training) for number in (1, 2)
    )
    assert all(client.params[SHARE] == 0.5 for client in first.federation.clients().values())
    assert all(client.params[SHARE] != 0.5 for client in second.federation.clients().values())


def test_alpha_is_a_constant_unless_it_adapts():
    training = Training(batch=8, optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=0.1))
    done = run(APFL(alpha=0.75), net=conv, training=training)
    assert all(client.params[SHARE] == 0.75 for client in done.federation.clients().values())


def test_a_newcomer_s_private_model_opens_as_the_model_it_received():
    training = Training(epochs=0, batch=8, optimizer=SGD(lr=ETA))
    early = run(APFL(), net=conv, number=2, sampling=Cohorts([[0]]))
    task = run(APFL(), net=conv, number=0, training=training).task
    message, letter = broadcast(task, early.server), address(task, early.server, 1)
    newcomer, _ = client_round(task, message, letter, Client(), work(SOURCE, 2, 1))
    assert same(private(newcomer), message.shared)


@each_mix
def test_clients_are_scored_on_the_mixture_with_the_newest_shared_model(mix):
    done = run(APFL(alpha=0.3, mix=mix), net=mlp, sampling=ALL)
    model, w = Model(mlp()), shared(done.server.params)
    for client, score in evaluate(done.task, done.server, done.federation).items():
        v = private(done.federation.clients()[client])
        x, y = SOURCE(client, "test")
        outputs = 0.3 * model(v, x) + 0.7 * model(w, x)
        if mix == "parameters":
            outputs = model({n: 0.3 * v[n] + 0.7 * w[n] for n in w}, x)
        assert score["test"].loss == pytest.approx(functional.cross_entropy(outputs, y).item(), rel=1e-5)


@pytest.mark.parametrize("bad", [{"alpha": -0.1}, {"alpha": 1.1}, {"mix": "losses"}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        APFL(**bad)
