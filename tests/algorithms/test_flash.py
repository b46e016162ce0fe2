"""FLASH: a server that notices drift, and clients that stop early."""

import numpy as np
import pytest
import torch
from laws.federations import ALL, Scheduled, Wrapped, close, conv, mlp, ragged, run, same, work
from torch.nn import functional

from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg
from fedlag.algorithms.flash import FLASH
from fedlag.errors import InputError
from fedlag.flow import Batch
from fedlag.optim import SGD, Adam, Flash

SOURCE = ragged()
TRAINING = Training(epochs=5, batch=8, optimizer=SGD(lr=0.3, momentum=0.5))
SERVER = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3}


# The server


def by_formula(steps):
    """The paper's recursion, on numbers."""
    w, m, v, d = np.zeros(30), np.zeros(30), np.full(30, 1e-6), np.zeros(30)
    for update in steps:
        m = 0.9 * m + 0.1 * update
        after = 0.99 * v + 0.01 * update**2
        b3 = v / (np.abs(update**2 - after) + v)
        d = b3 * d + (1 - b3) * (update**2 - after)
        v = after
        w = w + 0.1 * m / np.maximum(np.sqrt(v) - d + 1e-3, 1e-3)
    return w, d


def stepped(optimizer, steps):
    params = {"w": torch.zeros(30).double()}
    state = optimizer.init(params)
    for update in steps:
        params, state = optimizer.step(params, {"w": -torch.from_numpy(update)}, state)
    return params["w"], state


@pytest.mark.parametrize("scale", [0.01, 0.3, 3.0])
def test_many_steps_are_those_of_the_paper(scale):
    steps = scale * np.random.default_rng(0).normal(size=(20, 30))
    w, state = stepped(Flash(**SERVER), steps)
    expected, drift = by_formula(steps)
    assert np.allclose(w, expected)
    assert np.allclose(state["drift"]["w"], drift)
    assert np.abs(drift).max() > 0


def test_without_drift_it_is_fedadam():
    steps = 1e-3 * np.sign(np.random.default_rng(1).normal(size=(10, 30)))  # whose squares are as v begins
    w, state = stepped(Flash(**SERVER), steps)
    assert np.allclose(state["drift"]["w"], 0, atol=1e-15)
    assert torch.allclose(w, stepped(Adam(**SERVER, bias_correction=False), steps)[0])


def test_updates_that_grow_are_followed_faster_than_by_adam():
    steps = np.concatenate([np.full((30, 30), 0.01), np.full((3, 30), 0.1)])
    flash, adam = (stepped(o, steps)[0] - stepped(o, steps[:30])[0] for o in (Flash(**SERVER), Adam(**SERVER)))
    assert (flash > adam).all()


def test_a_step_is_never_taken_backwards():
    """However large the drift, the denominator stays at least eps."""
    steps = np.concatenate([np.full((5, 30), 1e-3), np.full((1, 30), 50.0)])
    last = stepped(Flash(**SERVER), steps)[0] - stepped(Flash(**SERVER), steps[:-1])[0]
    assert (last > 0).all()
    assert torch.isfinite(last).all()


def test_weights_that_never_move_stay_finite():
    state = {name: {"w": torch.zeros(3)} for name in ("mean", "square", "drift")}  # where v has faded to zero
    moved, state = Flash().step({"w": torch.ones(3)}, {"w": torch.zeros(3)}, state)
    assert torch.equal(moved["w"], torch.ones(3))
    assert not state["drift"]["w"].any()


def test_a_layer_that_was_personal_begins_without_drift():
    algorithm = FLASH(personal=Scheduled(("", "head.*", "")))
    done = run(algorithm, net=conv, number=3)
    drifts = [one.server.optimizer["drift"]["head.weight"].abs().max() > 0 for one in done.rounds]
    assert drifts == [False, False, True]


# Clients


def by_hand(round, client, gamma):
    """A client's end, having stopped when an epoch brought too little."""
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5)
    held = SOURCE(client, "validation")
    loss = functional.cross_entropy(net(held.x), held.y).item()
    batches = list(work(SOURCE, round, client).stream("train").batches(8, 5))
    length = len(batches) // 5
    for epoch in range(1, 6):
        for x, y in batches[(epoch - 1) * length : epoch * length]:
            optimizer.zero_grad()
            functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        before, loss = loss, functional.cross_entropy(net(held.x), held.y).item()
        if before - loss < gamma / epoch:
            break
    return {name: value.detach() for name, value in net.named_parameters()}, epoch


def ends(algorithm, training=TRAINING, source=SOURCE):
    done = run(algorithm, net=mlp, number=1, sampling=ALL, training=training, source=source, wrap=Wrapped)
    ((message, _, replies),) = done.federation.heard
    return {c: {n: message.shared[n] + r.update[n] for n in r.update} for c, r in replies.items()}


@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.3])
def test_clients_stop_when_an_epoch_brings_less_than_gamma_by_its_number(gamma):
    made, epochs = ends(FLASH(gamma=gamma)), set()
    for client, end in made.items():
        expected, epoch = by_hand(0, client, gamma)
        assert close(end, expected, 1e-5)
        epochs.add(epoch)
    assert len(epochs) > 1, "or this test would say little"


def test_with_an_endless_demand_everybody_trains_one_epoch():
    one_epoch = Training(epochs=1, batch=8, optimizer=TRAINING.optimizer)
    assert same(ends(FLASH(gamma=1e9)), ends(FedAvg(), one_epoch))


def test_in_a_single_epoch_nobody_stops():
    one_epoch = Training(epochs=1, batch=8, optimizer=TRAINING.optimizer)
    assert same(ends(FLASH(), one_epoch), ends(FedAvg(), one_epoch))


def test_without_validation_examples_nobody_stops():
    def source(client, part):
        x, y = SOURCE(client, part)
        return Batch(x[:0], y[:0]) if part == "validation" else Batch(x, y)

    assert same(ends(FLASH(gamma=1e9), source=source), ends(FedAvg(), source=source))


def test_a_negative_gamma_is_refused():
    with pytest.raises(InputError, match="gamma"):
        FLASH(gamma=-0.1)


@pytest.mark.parametrize(("setting", "value"), [("lr", 0), ("beta1", 1.0), ("beta2", -0.1), ("eps", 0)])
def test_server_settings_that_make_no_sense_are_refused(setting, value):
    with pytest.raises(InputError, match=setting):
        Flash(**{setting: value})
