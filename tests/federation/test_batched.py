"""Many clients of a dense model at once: who is taken, and that any schedule ends where one by one ends."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws import federations
from laws.federations import ALL, Cohorts, assert_equal, conv, double, mlp, ragged, run, start
from torch import nn

from fedlag.algorithm import Extension, Phase, Steps, Training
from fedlag.algorithms import REGISTRY, FedAvg, FedRep
from fedlag.federation.batched import Batched, obstacle
from fedlag.federation.cohorts import cohorts
from fedlag.net import Net
from fedlag.optim import SGD, Adagrad, Adam, Yogi
from fedlag.personal import Named
from fedlag.run import evaluate


def net(*modules, head=None, double=True):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        made = Net(nn.Sequential(nn.Flatten(), *(module() for module in modules)), (head or HEAD)())
    return made.double() if double else made


def linear(inputs, outputs, **settings):
    return lambda: nn.Linear(inputs, outputs, **settings)


HEAD = linear(6, 3)
BODIES = {
    "no hidden layer": lambda: net(head=linear(16, 3)),
    "ReLU": lambda: net(linear(16, 6), nn.ReLU),
    "sigmoid": lambda: net(linear(16, 6), nn.Sigmoid),
    "no activation": lambda: net(linear(16, 5), linear(5, 6)),
    "no biases": lambda: net(linear(16, 6, bias=False), nn.ReLU, head=linear(6, 3, bias=False)),
    "deep": lambda: net(linear(16, 6), nn.Identity, nn.ReLU, linear(6, 6), nn.Tanh, linear(6, 6), nn.ReLU),
    "a frozen layer": lambda: net(linear(16, 6), lambda: nn.Linear(6, 6).requires_grad_(False), nn.ReLU),
    "an activated head": lambda: net(linear(16, 6), nn.Tanh, head=lambda: nn.Sequential(nn.Linear(6, 3), nn.Tanh())),
}
TRAININGS = {
    "epochs": Training(batch=4, epochs=3, optimizer=SGD(lr=0.1)),
    "steps": Training(batch=4, steps=7, optimizer=SGD(lr=0.1)),
    "nothing": Training(batch=4, epochs=0, optimizer=SGD(lr=0.1)),
    "one batch": Training(batch=100, epochs=2, optimizer=SGD(lr=0.1)),
    "a fading rate": Training(batch=4, decay=0.5, optimizer=SGD(lr=0.1)),
    "weight decay": Training(batch=4, epochs=2, optimizer=SGD(lr=0.1, weight_decay=0.1)),
    "momentum": Training(batch=4, epochs=2, optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=0.1)),
    "Adam": Training(batch=4, epochs=2, optimizer=Adam(lr=0.01)),
    "Yogi": Training(batch=4, epochs=2, optimizer=Yogi(lr=0.01)),
    "Adagrad": Training(batch=4, epochs=2, optimizer=Adagrad(lr=0.01)),
}


def assert_as_one_by_one(algorithm, **setup):
    return federations.assert_as_one_by_one(Batched, algorithm, **{"net": lambda: mlp().double(), **setup})


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_any_chain_of_fully_connected_layers_is_taken(body):
    assert not assert_as_one_by_one(FedAvg(), net=body)


@pytest.mark.parametrize("name", ["fedavg", "fedrep", "fedprox"])
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_any_training_ends_where_one_by_one_ends(training, name):
    assert not assert_as_one_by_one(REGISTRY[name](), training=training)


def test_control_variates_come_from_all_clients_at_once():
    assert not assert_as_one_by_one(REGISTRY["scaffold"](), training=Training(batch=4, epochs=2))


def test_a_phase_has_a_length_and_an_optimiser_of_its_own():
    @dataclass(frozen=True, kw_only=True)
    class Phased(FedAvg):
        def phases(self, epochs):
            return Phase(Steps(3), "head.*", Adam(lr=0.01)), Phase(0), Phase(epochs, "body.3.*")

    assert not assert_as_one_by_one(Phased())


def test_tuning_for_evaluation_is_done_together():
    algorithm = FedAvg(tune=(Phase(2, "head.*", Adam(lr=0.01)),))
    setup = {"net": lambda: mlp().double(), "source": double(ragged()), "number": 1}
    done, reference = run(algorithm, federation=Together, **setup), run(algorithm, **setup)
    scored, expected = (dict(evaluate(one.task, one.server, one.federation)) for one in (done, reference))
    assert_equal(scored, expected, 1e-10)
    assert [purpose for purpose, _ in done.federation.fitted] == ["train", "train", "tune", "tune"]


class Together(Batched):
    """Notes who was fitted together, and for what."""

    def __init__(self, *given):
        super().__init__(*given, workers=1)
        self.fitted = []

    def together(self, task, locals, starts, phases, purpose):
        self.fitted.append((purpose, [local.work.client for local in locals]))
        return super().together(task, locals, starts, phases, purpose)


def test_in_single_precision_one_step_is_the_same_step():
    setup = {"net": mlp, "training": Training(batch=8, steps=1, optimizer=SGD(lr=0.1)), "sampling": ALL, "number": 1}
    done, reference = run(FedAvg(), federation=Batched, **setup), run(FedAvg(), **setup)
    assert_equal(done.server.params, reference.server.params, 1e-6)


@dataclass(frozen=True, kw_only=True)
class Own(FedAvg):
    def loss(self, local, params, batch):
        return super().loss(local, params, batch)


@dataclass(frozen=True, kw_only=True)
class Homemade(SGD):
    pass


@dataclass(frozen=True, kw_only=True)
class Extended(FedAvg):
    def extend(self, net, params, seed):
        return Extension({"more": torch.zeros(1)}, {})


OBSTACLES = {
    "a loss of its own": (Own(), mlp, {}),
    "not a chain": (FedAvg(), conv, {}),
    "Homemade": (FedAvg(), mlp, {"training": Training(optimizer=Homemade())}),
    "beside the model's": (Extended(), mlp, {}),
}


def task_of(algorithm, net=mlp, **setup):
    return start(algorithm, net=net, **setup)[0]


def test_a_plain_method_on_a_dense_model_meets_no_obstacle():
    assert obstacle(task_of(FedAvg())) == ""


@pytest.mark.parametrize(("reason", "algorithm", "model", "setup"), [(key, *value) for key, value in OBSTACLES.items()])
def test_who_cannot_be_taken_is_told_why(reason, algorithm, model, setup):
    assert reason in obstacle(task_of(algorithm, model, **setup))


@pytest.mark.parametrize(
    "modules",
    [
        (linear(16, 6), nn.Dropout),
        (linear(16, 6), lambda: nn.BatchNorm1d(6)),
        (linear(16, 6), nn.ReLU, nn.ReLU),
        (nn.ReLU, linear(16, 6)),
    ],
)
def test_other_modules_are_not_mistaken_for_what_they_look_like(modules):
    assert "not a chain" in obstacle(task_of(FedAvg(), lambda: net(*modules)))


@dataclass(frozen=True, kw_only=True)
class Peculiar(FedRep):
    """Corrects gradients by what differs between clients."""

    what: str

    def correct(self, local, params, grads):
        factors = {
            "nothing": lambda: 3,
            "start": lambda: local.start["head.bias"].sum(),
            "work": lambda: local.work.client,
            "number": lambda: 2 if local.number == 0 else 1,
            "round": lambda: 2 if local.client.round > 0 else 1,
            "params": lambda: 2 if local.client.params else 1,
        }
        return {name: factors[self.what]() * grad for name, grad in grads.items()}


newcomers = Cohorts([[0, 1], [2, 3, 1], [0, 1, 2, 3, 4]])


@pytest.mark.parametrize("what", ["work", "number", "round", "params"])
def test_a_correction_that_is_each_clients_own_is_left_to_each_client(what):
    assert "many clients at once" in assert_as_one_by_one(Peculiar(what=what), sampling=newcomers, number=3)


@pytest.mark.parametrize("what", ["nothing", "start"])
def test_a_correction_by_tensors_is_made_for_all_at_once(what):
    assert not assert_as_one_by_one(Peculiar(what=what), sampling=newcomers, number=3)


def test_what_a_client_keeps_holds_no_other_clients_memory():
    done = run(FedAvg(personal=Named("head.*")), federation=Batched, net=mlp, sampling=ALL, number=1)
    for client in done.federation.clients().values():
        for value in client.params.values():
            assert value.untyped_storage().nbytes() == value.nbytes


@given(st.dictionaries(st.integers(0, 10**6), st.integers(1, 10**4), max_size=200), st.integers(1, 60))
def test_everybody_is_in_one_cohort_with_the_nearest_in_size(sizes, most):
    made = cohorts(sizes, most)
    order = [client for cohort in made for client in cohort]
    assert sorted(order) == sorted(sizes)
    assert [sizes[client] for client in order] == sorted(sizes.values(), reverse=True)
    assert all(made)


def test_cohorts_have_about_as_much_to_do():
    assert [len(cohort) for cohort in cohorts(dict.fromkeys(range(20), 400), most=10)] == [10, 10]
    assert [len(cohort) for cohort in cohorts(dict.fromkeys(range(21), 400), most=10)] == [6, 5, 5, 5]
    assert [len(cohort) for cohort in cohorts({0: 1000, **dict.fromkeys(range(1, 11), 100)}, most=10)] == [1, 10]
