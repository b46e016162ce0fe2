"""FedDBE: a bias of one's own, and mean features pulled to the consensus."""

import copy
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from laws.federations import (
    ALL,
    SEED,
    SIZES,
    SOME,
    Cohorts,
    Wrapped,
    close,
    conv,
    mlp,
    noisy,
    ragged,
    run,
    same,
    start,
    with_lag,
    work,
)
from torch.nn import functional

from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.algorithms.feddbe import BIAS, CONSENSUS, MEAN, FedDBE
from fedlag.errors import InputError
from fedlag.flow import Batch
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.run import evaluate, rounds
from fedlag.tree import select, without

SOURCE = ragged()
TRAINING = Training(epochs=2, batch=8, optimizer=SGD(lr=0.1))
STANDSTILL = Training(epochs=2, batch=8, optimizer=SGD(lr=1e-30))
OWN = (BIAS, MEAN, CONSENSUS)
nets = pytest.mark.parametrize("net", [mlp, conv])


@dataclass(frozen=True, kw_only=True)
class Unbiased(FedDBE):
    """The bias stays 0."""

    def correct(self, local, params, grads):
        return without(grads, [BIAS])


@pytest.mark.parametrize("net", [mlp, noisy])
def test_without_pull_and_bias_it_is_fedavg_after_its_first_round(net):
    dbe = run(Unbiased(strength=0.0), net=net, training=TRAINING, number=4)
    task, server, federation = start(FedAvg(), net=net, training=TRAINING)
    avg = list(islice(rounds(task, server._replace(round=1), federation, SOME, SEED), 3))
    assert same(without(dbe.server.params, OWN), avg[-1].server.params)
    assert same(
        evaluate(dbe.task, dbe.server, dbe.federation, "global"), evaluate(task, avg[-1].server, federation, "global")
    )


# The first round


def opening(net, client, momentum):
    """The running mean of features of a client that trains the plain model, as a PyTorch user would find it."""
    net, mean = copy.deepcopy(net), 0.0
    for x, y in work(SOURCE, 0, client).stream("opening").batches(8, 2):
        net.train(len(y) > 1)
        z = net.body(x)
        mean = (1 - momentum) * mean + momentum * z.mean(0).detach()
        net.zero_grad()
        functional.cross_entropy(net.head(z), y).backward()
        with torch.no_grad():
            for value in net.parameters():
                value -= 0.1 * value.grad
    return mean


@nets
@pytest.mark.parametrize("momentum", [1.0, 0.3])
def test_the_consensus_is_the_mean_over_everybody_s_examples(net, momentum):
    done = run(FedDBE(momentum=momentum), net=net, training=TRAINING, number=1)
    means = [opening(net(), client, momentum) * size / sum(SIZES) for client, size in enumerate(SIZES)]
    assert torch.allclose(done.server.params[CONSENSUS], sum(means), atol=1e-6)


@nets
def test_the_first_round_moves_nothing_but_the_consensus(net):
    done = run(FedDBE(), net=net, training=TRAINING, number=1)
    before = done.rounds[0].message.shared
    assert same(without(done.server.params, OWN), without(before, OWN))
    assert all((kept.params[BIAS] == 0).all() for kept in done.federation.clients().values())


def test_heads_that_are_personal_do_not_move_in_the_first_round_either():
    done = run(FedDBE(personal=Named("own.*") | Named("head.*")), net=mlp, training=TRAINING, number=1)
    for kept in done.federation.clients().values():
        assert torch.equal(kept.params["head.weight"], done.server.params["head.weight"])


def test_everybody_takes_part_in_the_first_round_only():
    done = run(FedDBE(), net=mlp, sampling=SOME)
    assert [len(one.letters) for one in done.rounds] == [5, 3, 3]


def test_later_rounds_leave_the_consensus_as_it_is():
    done = run(FedDBE(), net=mlp, number=4)
    assert all(torch.equal(one.server.params[CONSENSUS], done.server.params[CONSENSUS]) for one in done.rounds)


def test_the_first_round_is_no_conflict():
    """Nobody's update says anything yet."""
    done = run(with_lag(FedDBE(), k=3), net=mlp, sampling=ALL, number=2)
    assert all(conflict.count == 0 for conflict in done.rounds[0].step.conflicts.values())
    assert done.rounds[1].message.personal == {BIAS, MEAN}


# Later rounds


@nets
@pytest.mark.parametrize("momentum", [1.0, 0.3])
def test_rounds_written_out_by_hand(net, momentum):
    algorithm = FedDBE(strength=2.0, momentum=momentum)
    done = run(algorithm, net=net, training=TRAINING, sampling=Cohorts([[0, 1, 2, 3, 4], [0, 1], [1, 3]]), number=3)
    consensus = done.rounds[0].server.params[CONSENSUS]
    glob, biases = net(), {}
    for round, cohort in ((1, [0, 1]), (2, [1, 3])):
        trained, total = [], sum(SIZES[client] for client in cohort)
        for client in cohort:
            mine, mean = copy.deepcopy(glob), torch.zeros(5)
            bias = biases.get(client, torch.zeros(5)).clone().requires_grad_()
            for x, y in work(SOURCE, round, client).stream("train").batches(8, 2):
                mine.train(len(y) > 1)
                z = mine.body(x)
                mean = (1 - momentum) * mean.detach() + momentum * z.mean(0)
                loss = functional.cross_entropy(mine.head(z + bias), y)
                loss = loss + 2.0 * (0.5 * (mean - consensus) ** 2).mean()
                optimizer = torch.optim.SGD([*mine.parameters(), bias], 0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            biases[client] = bias.detach()
            trained.append((mine.state_dict(), SIZES[client] / total))
            if round == 2:
                assert torch.allclose(done.federation.clients()[client].params[MEAN], mean, atol=1e-5)
        names = [name for name in trained[0][0] if name in done.server.params]
        state = {name: sum(share * one[name] for one, share in trained) for name in names}
        glob.load_state_dict(state, strict=False)
        assert close(select(done.rounds[round].server.params, names), state, 1e-5)
    clients = done.federation.clients()
    assert all(torch.allclose(clients[client].params[BIAS], bias, atol=1e-5) for client, bias in biases.items())

    glob.eval()
    for client, scores in evaluate(done.task, done.server, done.federation).items():
        x, y = SOURCE(client, "test")
        expected = functional.cross_entropy(glob.head(glob.body(x) + biases.get(client, torch.zeros(5))), y)
        assert scores["test"].loss == pytest.approx(expected.item(), abs=1e-4)


def test_with_momentum_one_the_running_mean_is_the_batch_s_mean():
    model, batch = Model(mlp()), Batch(*SOURCE(0, "train"))
    params = {**model.init(), BIAS: torch.zeros(5), MEAN: torch.full((5,), 7.0), CONSENSUS: torch.zeros(5)}
    loss = FedDBE(strength=2.0).loss(SimpleNamespace(net=model), params, batch)
    features = model.features(params, batch.x)
    assert torch.allclose(params[MEAN], features.mean(0))
    plain = functional.cross_entropy(model.classify(params, features), batch.y)
    assert loss.item() == pytest.approx((plain + features.mean(0).square().mean()).item(), rel=1e-5)


def test_where_the_model_stands_still_the_consensus_of_one_client_does_not_pull():
    """One client, full batches, momentum one: at the initial model its mean features are the consensus."""
    one_step = Training(batch=100, optimizer=SGD(lr=0.1))
    pulled, free = (
        run(FedDBE(strength=strength), net=mlp, clients=1, training=one_step, number=2) for strength in (50.0, 0.0)
    )
    assert close(pulled.server.params, free.server.params)
    later = run(FedDBE(), net=mlp, clients=1, training=one_step, number=3).server.params
    assert not close(later, run(FedDBE(strength=0.0), net=mlp, clients=1, training=one_step, number=3).server.params)


def test_the_running_mean_begins_anew_in_every_round():
    done = run(FedDBE(momentum=0.5), net=mlp, training=STANDSTILL, sampling=ALL, number=3)
    net = mlp()
    for client, kept in done.federation.clients().items():
        mean = torch.zeros(5)
        for x, _ in work(SOURCE, 2, client).stream("train").batches(8, 2):
            mean = 0.5 * mean + 0.5 * net.body(x).mean(0)
        assert torch.allclose(kept.params[MEAN], mean, atol=1e-6)


def test_a_client_that_comes_late_has_no_bias_and_the_same_consensus():
    class Absent(Wrapped):
        def train(self, message, letters, scored):
            present = {client: letter for client, letter in letters.items() if message.round or client != 4}
            return super().train(message, present, scored)

    done = run(FedDBE(), net=mlp, sampling=Cohorts([[0, 1], [0, 1], [4]]), number=3, wrap=Absent)
    assert done.rounds[0].dropped.keys() == {4}
    assert 4 in done.rounds[2].letters
    assert (done.rounds[2].letters[4].birth[BIAS] == 0).all()
    assert (done.federation.clients()[4].params[BIAS] != 0).any()


@pytest.mark.parametrize(("setting", "value"), [("strength", -1.0), ("momentum", 0.0), ("momentum", 1.1)])
def test_settings_are_checked(setting, value):
    with pytest.raises(InputError, match=setting):
        FedDBE(**{setting: value})
