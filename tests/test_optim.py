"""The optimisers against PyTorch's, and the servers' Adam against its formula."""

import copy

import numpy as np
import pytest
import torch
from laws.federations import close, same

from fedlag.errors import InputError
from fedlag.optim import SGD, Adagrad, Adam, Flash, Yogi

SHAPES = {"a": (3, 2), "b": (5,), "c": ()}


def random(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def ours(optimizer, steps):
    params = random(0)
    state = optimizer.init(params)
    for step in range(1, steps + 1):
        params, state = optimizer.step(params, random(step), state)
    return params


def theirs(make, steps):
    params = {name: value.requires_grad_() for name, value in random(0).items()}
    optimizer = make(params.values())
    for step in range(1, steps + 1):
        for name, grad in random(step).items():
            params[name].grad = grad
        optimizer.step()
    return {name: value.detach() for name, value in params.items()}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_sgd_is_torch_s(momentum, weight_decay):
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    assert close(ours(SGD(**settings), 20), theirs(lambda values: torch.optim.SGD(values, **settings), 20), 2e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_torch_s_in_double_precision(momentum, monkeypatch):
    """There rounding hides nothing."""
    single = random
    monkeypatch.setattr("test_optim.random", lambda seed: {n: v.double() for n, v in single(seed).items()})
    settings = {"lr": 0.1, "momentum": momentum, "weight_decay": 0.01}
    assert close(ours(SGD(**settings), 20), theirs(lambda values: torch.optim.SGD(values, **settings), 20), 1e-13)


@pytest.mark.parametrize("settings", [{}, {"lr": 0.02, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3}])
def test_adam_on_clients_is_torch_s(settings):
    adam = Adam(**settings)
    torch_adam = {"lr": adam.lr, "betas": (adam.beta1, adam.beta2), "eps": adam.eps}
    assert close(ours(adam, 20), theirs(lambda values: torch.optim.Adam(values, **torch_adam), 20), 1e-6)


def test_adam_on_servers_is_that_of_adaptive_federated_optimization():
    """m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2 from v = eps^2; w <- w - lr m / (sqrt(v) + eps)."""
    adam = Adam(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-2, bias_correction=False)
    for name, value in random(0).items():
        w, m, v = value.double().numpy(), 0.0, 1e-4
        for step in range(1, 21):
            g = random(step)[name].double().numpy()
            m = 0.9 * m + 0.1 * g
            v = 0.99 * v + 0.01 * g**2
            w = w - 0.1 * m / (np.sqrt(v) + 1e-2)
        assert np.allclose(ours(adam, 20)[name].numpy(), w, atol=1e-5)


OPTIMIZERS = [SGD(), SGD(momentum=0.9), Adam(), Adam(bias_correction=False), Yogi(), Adagrad(), Flash()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_changes_nothing_it_is_given(optimizer):
    params, grads = random(0), random(1)
    state = optimizer.init(params)
    _, state = optimizer.step(params, grads, state)
    before = copy.deepcopy((params, grads, state))
    first = optimizer.step(params, grads, state)
    assert same(before, (params, grads, state))
    assert same(first, optimizer.step(params, grads, state))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_only_what_has_a_gradient_moves(optimizer):
    params = random(0)
    grads = {"b": random(1)["b"]}
    moved, _ = optimizer.step(params, grads, optimizer.init(grads))
    assert moved.keys() == params.keys()
    assert [name for name in params if not torch.equal(moved[name], params[name])] == ["b"]
    assert same(optimizer.step(params, {}, optimizer.init({}))[0], params)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_names_the_parameters_so_that_parts_of_it_can_be_left_out(optimizer):
    for value in optimizer.init(random(0)).values():
        assert not isinstance(value, dict) or value.keys() == SHAPES.keys()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_slowed_multiplies_the_learning_rate_and_nothing_else(optimizer):
    slowed = optimizer.slowed(0.5)
    assert slowed.lr == optimizer.lr / 2
    assert slowed.slowed(2.0) == optimizer


@pytest.mark.parametrize(
    ("make", "name", "allowed"),
    [
        (lambda: SGD(lr=0), "lr", "above 0"),
        (lambda: SGD(lr=float("inf")), "lr", "above 0"),
        (lambda: SGD(momentum=1), "momentum", "below 1"),
        (lambda: SGD(weight_decay=-1e-9), "weight_decay", "from 0"),
        (lambda: Adam(lr="fast"), "lr", "above 0"),
        (lambda: Adam(beta1=1.0), "beta1", "below 1"),
        (lambda: Adam(beta2=-0.1), "beta2", "below 1"),
        (lambda: Adam(eps=0), "eps", "above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, name, allowed):
    with pytest.raises(InputError, match=f"{name} = .*{allowed}"):
        make()
