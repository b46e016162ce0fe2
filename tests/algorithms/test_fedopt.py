"""FedAdagrad, FedAdam, FedYogi and FedAvgM: FedAvg whose server steps as an optimiser does."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from laws.federations import Scheduled, Wrapped, conv, run, same

from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.errors import InputError
from fedlag.experiment import load
from fedlag.optim import SGD, Adagrad, Adam, Yogi

METHODS = ("fedadagrad", "fedadam", "fedyogi", "fedavgm")
ADAPTIVE = METHODS[:3]
each_method = pytest.mark.parametrize("name", METHODS)


def rules(name):
    """m, v and the step w -> w + ..., of an update, as Reddi et al. print them."""
    first = 0.0 if name == "fedadagrad" else 0.9

    def second(v, update):
        square = update**2
        return {
            "fedadagrad": v + square,
            "fedadam": 0.99 * v + 0.01 * square,
            "fedyogi": v - 0.01 * square * np.sign(v - square),
        }[name]

    return first, second


@pytest.mark.parametrize("name", ADAPTIVE)
def test_many_steps_are_those_of_the_paper(name):
    optimizer, (first, second) = REGISTRY[name]().server, rules(name)
    generator = np.random.default_rng(0)
    w, m, v = generator.normal(size=20), np.zeros(20), np.full(20, 1e-6)
    params = {"w": torch.from_numpy(w)}
    state = optimizer.init(params)
    for _ in range(15):
        update = generator.normal(size=20) * generator.choice([1e-4, 1e-2, 1.0], size=20)
        m, v = first * m + (1 - first) * update, second(v, update)
        w = w + optimizer.lr * m / (np.sqrt(v) + 1e-3)
        params, state = optimizer.step(params, {"w": torch.from_numpy(-update)}, state)
    assert np.allclose(params["w"], w)
    assert np.allclose(state["square"]["w"], v)


def test_a_plain_server_step_of_one_is_fedavg():
    plain = run(FedAvg(server=SGD(lr=1.0)), net=conv, wrap=Wrapped)
    for (message, _, replies), one in zip(plain.federation.heard, plain.rounds, strict=True):
        total = sum(reply.examples for reply in replies.values())
        for name, start in message.shared.items():
            mean = sum(reply.update[name] * (reply.examples / total) for reply in replies.values())
            assert torch.allclose(one.server.params[name], start + mean, atol=1e-6)


def test_momentum_adds_up_updates():
    done, m = run(REGISTRY["fedavgm"](), net=conv, wrap=Wrapped), 0.0
    for (message, _, replies), one in zip(done.federation.heard, done.rounds, strict=True):
        total = sum(reply.examples for reply in replies.values())
        mean = sum(reply.update["head.weight"] * (reply.examples / total) for reply in replies.values())
        m = 0.9 * m + mean
        assert torch.allclose(one.server.params["head.weight"], message.shared["head.weight"] + m, atol=1e-6)


def one_step(optimizer, update, state=None):
    update = torch.tensor(update).double()
    start = {"w": torch.zeros_like(update)}
    state = optimizer.init(start) if state is None else state
    moved, state = optimizer.step(start, {"w": -update}, state)
    return moved["w"], state


def test_adam_without_memory_steps_by_the_sign_of_what_is_larger_than_tau():
    update = [1.0, -0.5, 1e-3, 0.0]
    moved, _ = one_step(Adam(lr=0.1, beta1=0.0, beta2=0.0, eps=1e-3, bias_correction=False), update)
    assert moved.tolist() == pytest.approx([0.1 * u / (abs(u) + 1e-3) for u in update])


def test_yogi_s_average_of_squares_stays_where_it_is_met():
    square = torch.tensor([0.25, 4.0]).double()
    state = {"mean": {"w": torch.zeros(2).double()}, "square": {"w": square}}
    _, after = one_step(Yogi(), [0.5, -2.0], state)
    assert torch.equal(after["square"]["w"], square)


def test_adagrad_forgets_nothing_and_adds_nothing_for_no_update():
    _, state = one_step(Adagrad(), [3.0, 0.0])
    assert state["square"]["w"].tolist() == pytest.approx([9 + 1e-6, 1e-6])
    moved, after = one_step(Adagrad(), [0.0, 0.0], state)
    assert torch.equal(after["square"]["w"], state["square"]["w"])
    assert not moved.any()


@pytest.mark.parametrize("name", ADAPTIVE)
def test_the_first_steps_have_about_one_size_however_long_the_updates(name):
    server = REGISTRY[name]().server
    sizes = [float(one_step(server, [length])[0].abs()) for length in (0.1, 1.0, 10.0)]
    assert max(sizes) < 1.15 * min(sizes)


@each_method
def test_statistics_are_averaged_plainly(name):
    done, plain = run(REGISTRY[name](), net=conv, number=1), run(FedAvg(), net=conv, number=1)
    statistics = [name for name in plain.server.params if "running" in name]
    assert statistics
    assert same(*({n: one.server.params[n] for n in statistics} for one in (done, plain)))


@each_method
def test_a_layer_that_was_personal_begins_with_fresh_moments(name):
    """Personal in rounds 1 and 2; then its moments are as before the first round, and move from there."""
    algorithm = REGISTRY[name](personal=Scheduled(("", "head.*", "head.*", "")))
    done = run(algorithm, net=conv, number=4)

    def moments(state, weight):
        return {key: value.get(weight) for key, value in state.items() if isinstance(value, dict)}

    begun = algorithm.server.init(done.rounds[0].message.shared)
    _, away, back, again = (one.server.optimizer for one in done.rounds)
    assert set(moments(away, "head.weight").values()) == {None}
    assert same(moments(back, "head.weight"), moments(begun, "head.weight"))
    assert not same(moments(again, "head.weight"), moments(begun, "head.weight"))
    for one, other in pairwise([begun, away, back, again]):
        assert not same(moments(one, "body.0.weight"), moments(other, "body.0.weight"))


@each_method
def test_the_server_s_learning_rate_is_one_setting(name):
    server = load({"algorithm": name}, "algorithm.server.lr=0.03").algorithm.server
    assert server == REGISTRY[name]().server.slowed(0.03 / REGISTRY[name]().server.lr)


@pytest.mark.parametrize("kind", [Yogi, Adagrad])
@pytest.mark.parametrize(("setting", "value"), [("lr", 0), ("beta1", 1.0), ("eps", 0.0)])
def test_settings_that_make_no_sense_are_refused(kind, setting, value):
    with pytest.raises(InputError, match=setting):
        kind(**{setting: value})


def test_yogi_s_beta2_is_below_one():
    with pytest.raises(InputError, match="beta2"):
        Yogi(beta2=1.0)
