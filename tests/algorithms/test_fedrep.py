"""FedRep: first the head, then the body."""

import pytest
import torch
from laws.federations import SIZES, Cohorts, close, conv, mlp, noisy, ragged, run, same, work

from algorithms.by_hand import loaded, trained, values
from fedlag.algorithm import Phase, Training
from fedlag.algorithms import REGISTRY, FedBABU, FedRep
from fedlag.errors import InputError
from fedlag.optim import SGD
from fedlag.run import evaluate
from fedlag.tree import select, under

SOURCE = ragged()
nets = pytest.mark.parametrize("net", [mlp, noisy])


def parts(params):
    """Head and body."""
    return tuple(select(params, under(params, pattern)) for pattern in ("head.*", "body.*"))


@nets
def test_the_head_rests_while_the_body_trains(net):
    done = run(FedRep(head_epochs=0), net=net)
    (head, body), (first_head, first_body) = (
        parts(done.server.params),
        parts(done.rounds[0].message.shared | values(net())),
    )
    assert same(head, first_head)
    assert not same(body, first_body)
    for client in done.federation.clients().values():
        assert same(client.params, first_head)


@nets
def test_the_body_rests_while_heads_train_statistics_included(net):
    done = run(FedRep(head_epochs=3), net=net, training=Training(epochs=0, batch=8, optimizer=SGD(lr=0.1)))
    first_head, first_body = parts(values(net()))
    assert close(parts(done.server.params)[1], first_body, 0)
    for client in done.federation.clients().values():
        assert client.params.keys() == first_head.keys()
        assert not any(torch.equal(client.params[name], value) for name, value in first_head.items())


def test_it_is_the_printed_algorithm():
    """On one stream of shuffled batches; absent clients keep their heads."""
    cohorts = [[0, 1, 2], [1, 3], [0, 4], [0, 1, 2, 3, 4]]
    net = conv()
    head, body = parts(values(net))
    heads = [head] * len(SIZES)
    for round, cohort in enumerate(cohorts):
        bodies = []
        for client in cohort:
            stream = work(SOURCE, round, client).stream("train")
            local = trained(loaded(net, body, heads[client]), stream.batches(8, 3), "head.")
            local = trained(local, stream.batches(8, 2), "body.")
            heads[client], end = parts(values(local))
            bodies.append(end)
        total = sum(SIZES[client] for client in cohort)
        weights = [SIZES[client] / total for client in cohort]
        body = {name: sum(w * one[name] for w, one in zip(weights, bodies, strict=True)) for name in body}
    training = Training(epochs=2, batch=8, optimizer=SGD(lr=0.1))
    setup = {"net": conv, "source": SOURCE, "training": training, "sampling": Cohorts(cohorts), "number": 4}
    done = run(FedRep(head_epochs=3), **setup)
    assert close(parts(done.server.params)[1], body, 1e-5)
    for client, kept in done.federation.clients().items():
        assert close(kept.params, heads[client], 1e-5)


@nets
def test_trained_jointly_without_head_epochs_it_is_fedper_bit_for_bit(net):
    class Jointly(FedRep):
        def phases(self, epochs):
            return Phase(self.head_epochs, "head.*"), Phase(epochs)

    ours, theirs = run(Jointly(head_epochs=0), net=net), run(REGISTRY["fedper"](), net=net)
    assert same(ours.server.params, theirs.server.params)
    assert same(ours.federation.clients(), theirs.federation.clients())


@nets
def test_without_head_epochs_it_trains_as_fedbabu_does_bit_for_bit(net):
    assert same(run(FedRep(head_epochs=0), net=net).server.params, run(FedBABU(), net=net).server.params)


def test_heads_can_be_fitted_anew_before_evaluation_and_are_not_written_back():
    refit = run(FedRep(tune=(Phase(10, "head.*"),)))
    bare = run(FedRep())
    scores = [evaluate(done.task, done.server, done.federation) for done in (refit, bare)]
    assert not same(*scores)
    assert same(refit.server, bare.server)
    assert same(refit.federation.clients(), bare.federation.clients())


def test_half_a_number_of_epochs_is_refused():
    with pytest.raises(InputError, match="head_epochs = "):
        FedRep(head_epochs=1.5)
