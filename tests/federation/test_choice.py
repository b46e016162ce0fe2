"""Who trains the clients, where nobody says."""

import pytest
import torch
from laws.federations import TRAINING, conv, mlp, noisy, ragged

from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.errors import InputError
from fedlag.federation import choice
from fedlag.federation.batched import Batched
from fedlag.federation.choice import FEDERATIONS, NAMES, choose, make
from fedlag.federation.processes import Processes
from fedlag.federation.sequential import Sequential
from fedlag.federation.threaded import Threaded
from fedlag.net import Model
from fedlag.round import begin


def task(net, algorithm=None):
    return begin(algorithm or FedAvg(), Model(net()), TRAINING, 5, 0)[0]


@pytest.fixture
def steps_take(monkeypatch):
    return lambda seconds: monkeypatch.setattr(choice, "step_seconds", lambda task, batch: seconds)


@pytest.mark.parametrize(
    ("net", "method", "seconds", "workers", "name"),
    [
        (mlp, "fedavg", 1.0, 4, "batched"),
        (conv, "fedavg", 1.0, 4, "threaded"),
        (conv, "fedavg", 1.0, 1, "sequential"),
        (conv, "fedavg", 1e-5, 4, "processes"),
        (conv, "fedavg", 1e-5, 1, "sequential"),
        (noisy, "fedavg", 1.0, 4, "processes"),
        (mlp, "moon", 1.0, 4, "threaded"),
    ],
)
def test_the_choice(steps_take, net, method, seconds, workers, name):
    steps_take(seconds)
    chosen = choose("auto", task(net, REGISTRY[method]()), ragged(), workers)
    assert chosen.name == name
    assert chosen.why


@pytest.mark.parametrize("net", [mlp, conv, noisy])
def test_on_a_gpu_clients_go_one_by_one_unless_told_otherwise(monkeypatch, net):
    monkeypatch.setattr(Model, "device", torch.device("cuda"))
    assert choose("auto", task(net), ragged(), 4).name == "sequential"
    with pytest.raises(InputError, match="GPUs"):
        make(choose("processes", task(net), ragged(), 4), task(net), ragged(), 0)


@pytest.mark.parametrize(("net", "seconds"), [(conv, 1e-5), (noisy, 1.0)])
def test_where_a_process_cannot_be_copied_clients_go_one_by_one(steps_take, monkeypatch, net, seconds):
    steps_take(seconds)
    monkeypatch.setattr(choice, "FORKS", False)
    assert choose("auto", task(net), ragged(), 4).name == "sequential"


def test_what_decides_the_last_bits_does_not_depend_on_the_machine(steps_take):
    for seconds in (1e-6, 10.0):
        steps_take(seconds)
        assert {choose("auto", task(mlp), ragged(), workers).name for workers in (1, 2, 64)} == {"batched"}


@pytest.mark.parametrize("name", FEDERATIONS)
def test_a_name_is_a_wish(name):
    chosen = choose(name, task(conv), ragged(), 2)
    assert (chosen.name, chosen.workers) == (name, 2)
    made = make(chosen, task(conv), ragged(), 0)
    assert isinstance(made, Sequential)
    assert isinstance(made, {"threaded": Threaded, "processes": Processes, "batched": Batched}.get(name, Sequential))


def test_a_step_is_timed():
    assert 0 < choice.step_seconds(task(conv), choice.first_batch(task(conv), ragged())) < 10


def test_auto_is_among_the_names():
    assert set(NAMES) == {"auto", *FEDERATIONS}
