"""SCAFFOLD: gradients corrected by control variates."""

import copy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from laws.federations import (
    ALL,
    SEED,
    SIZES,
    SOME,
    Cohorts,
    close,
    conv,
    identical,
    mlp,
    noisy,
    ragged,
    run,
    same,
    snapshot,
    with_lag,
    work,
)
from torch.nn import functional

from algorithms.bowls import JOINT, LR, START, W, near, roll, slope
from algorithms.by_hand import loaded, values
from algorithms.memories import COMES_AND_GOES, left, moments
from fedlag.aggregate import Mean
from fedlag.algorithm import Training
from fedlag.algorithms import SCAFFOLD, FedAvg
from fedlag.errors import InputError
from fedlag.optim import SGD, Adam
from fedlag.run import rounds

UNIFORM = FedAvg(aggregator=Mean(weighting="uniform"))
SOURCE = ragged()


def assert_server_remembers_the_mean(seen):
    for one in seen:
        control = one.server.memory["control"]
        for name in one.shared:
            assert torch.allclose(control[name], one.remembered(name).mean(0), rtol=0, atol=1e-5)
    assert any(one.remembered(name).any() for one in seen for name in one.shared)


@pytest.mark.parametrize("sampling", [ALL, SOME, Cohorts([[0], [1, 2], [0]])], ids=["all", "some", "never all"])
@pytest.mark.parametrize("net", [mlp, noisy])
def test_the_server_s_control_is_the_mean_over_all_clients_whoever_takes_part(net, sampling):
    assert_server_remembers_the_mean(list(moments(SCAFFOLD(), net=net, sampling=sampling)))


@pytest.mark.parametrize("sampling", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize(
    "algorithm",
    [SCAFFOLD(personal=COMES_AND_GOES), with_lag(SCAFFOLD(), k=1), with_lag(SCAFFOLD(), k=2, hold=2)],
    ids=["scheduled", "lag", "lag that holds"],
)
def test_it_stays_the_mean_for_shared_layers_when_layers_become_personal_and_leave(algorithm, sampling):
    seen = list(moments(algorithm, sampling=sampling, number=12))
    assert left(seen), "some layer was personal and is shared again"
    assert_server_remembers_the_mean(seen)


def test_nobody_has_a_control_for_a_personal_layer_and_a_layer_that_comes_back_starts_at_zero():
    seen = list(moments(SCAFFOLD(personal=COMES_AND_GOES), sampling=ALL))
    for before, after in pairwise(seen):
        for name in before.personal - after.personal:
            assert not after.server.memory["control"][name].any()
            assert not after.remembered(name).any()
        assert all(before.personal.isdisjoint(client.memory) for client in after.clients.values())


def by_hand(net, cohorts, epochs, lr, decay, weight_decay):
    """The algorithm as printed, where a client's new control is the mean of the gradients it met."""
    everyone = {name: torch.zeros_like(value) for name, value in net.named_parameters()}
    own = [everyone] * len(SIZES)
    for round, cohort in enumerate(cohorts):
        ends, changes = [], []
        for client in cohort:
            local, met = copy.deepcopy(net), []
            for x, y in work(SOURCE, round, client).stream("train").batches(8, epochs):
                local.train(len(y) > 1)  # one example has no variance
                local.zero_grad()
                functional.cross_entropy(local(x), y).backward()
                met.append({name: w.grad + weight_decay * w.detach() for name, w in local.named_parameters()})
                for name, w in local.named_parameters():
                    w.data -= lr * decay**round * (met[-1][name] - own[client][name] + everyone[name])
            control = {name: sum(one[name] for one in met) / len(met) for name in everyone}
            changes.append({name: control[name] - own[client][name] for name in control})
            own[client] = control
            ends.append(values(local))
        net = loaded(net, {name: sum(end[name] for end in ends) / len(ends) for name in ends[0]})
        everyone = {name: c + sum(change[name] for change in changes) / len(SIZES) for name, c in everyone.items()}
    return values(net), everyone


@pytest.mark.parametrize("net", [mlp, conv])
def test_it_is_the_printed_algorithm_with_ragged_clients_decay_and_partial_participation(net):
    """Steps are those executed, from 3 to 6; L2 decay is part of the loss, and so of the controls."""
    cohorts = [[0, 1, 2], [1, 3, 4], [0, 2, 4], [2, 3]]
    model, control = by_hand(net(), cohorts, epochs=3, lr=0.1, decay=0.7, weight_decay=0.05)
    training = Training(epochs=3, batch=8, decay=0.7, optimizer=SGD(lr=0.1, weight_decay=0.05))
    done = run(SCAFFOLD(), net=net, source=SOURCE, training=training, sampling=Cohorts(cohorts), number=4)
    assert close(done.server.params, model, 1e-5)
    assert close(done.server.memory["control"], control, 1e-5)


@pytest.mark.parametrize("net", [mlp, noisy])
def test_the_first_round_is_fedavg_with_uniform_weights_bit_for_bit(net):
    assert same(run(SCAFFOLD(), net=net, number=1).server.params, run(UNIFORM, net=net, number=1).server.params)


def test_among_identical_clients_with_full_batches_it_is_fedavg():
    setup = {"net": mlp, "source": identical(), "clients": 4, "sampling": ALL}
    training = Training(epochs=3, batch=10, optimizer=SGD(lr=0.1))
    done = run(SCAFFOLD(), training=training, **setup)
    assert close(done.server.params, run(FedAvg(), training=training, **setup).server.params)
    for client in done.federation.clients().values():
        assert close(client.memory, done.server.memory["control"])


def test_after_one_full_step_controls_are_gradients_and_correct_the_next_ones():
    first, second = roll(SCAFFOLD, number=1), roll(SCAFFOLD, number=2, wrap=Ends)
    mean = sum(slope(START, client) for client in range(3)) / 3
    after = START - LR * mean
    for client, kept in first.federation.clients().items():
        assert near(kept.memory[W], slope(START, client))
        expected = after - LR * (slope(after, client) - slope(START, client) + mean)
        assert near(second.federation.ends[client], expected)


class Ends:
    """A federation that notes where clients ended the last round."""

    def __init__(self, federation):
        self.federation = federation
        self.ends = {}

    def train(self, message, letters, scored):
        for client, reply in self.federation.train(message, letters, scored):
            self.ends[client] = message.shared[W] + reply.update[W]
            yield client, reply


def test_with_single_full_steps_the_global_model_descends_along_the_joint_gradient():
    w = START
    for _ in range(20):
        w = w - LR * sum(slope(w, client) for client in range(3)) / 3
    assert near(roll(SCAFFOLD, number=20).server.params[W], w)


def test_with_many_local_steps_it_still_finds_the_joint_optimum_and_fedavg_does_not():
    joint = torch.full_like(START, JOINT)
    assert near(roll(SCAFFOLD, steps=10, number=60).server.params[W], joint, 1e-3)
    drifting = roll(FedAvg, steps=10, number=60, aggregator=Mean(weighting="uniform"))
    assert not near(drifting.server.params[W], joint, 0.1)


def test_controls_cover_trainable_parameters_only():
    *_, last = moments(SCAFFOLD(), net=noisy)
    assert last.task.carried
    assert last.server.memory["control"].keys() == set(last.task.trained)
    assert all(client.memory.keys() == set(last.task.trained) for client in last.clients.values())


def test_a_round_without_steps_leaves_controls_as_they_were():
    done = run(SCAFFOLD(), sampling=ALL)
    before = snapshot(done.federation.clients())
    done.federation.task = replace(done.task, training=Training(epochs=0))
    idle = next(rounds(done.task, done.server, done.federation, ALL, SEED))
    assert not idle.dropped
    assert same(idle.server.memory, done.server.memory)
    for client, kept in done.federation.clients().items():
        assert same(kept.memory, before[client].memory)


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()])
def test_optimisers_whose_path_is_no_sum_of_gradients_are_refused(optimizer):
    with pytest.raises(InputError, match="momentum = 0"):
        run(SCAFFOLD(), training=Training(optimizer=optimizer))
