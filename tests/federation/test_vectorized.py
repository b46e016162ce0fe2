"""Many clients of any model at once, by `torch.func.vmap`."""

from dataclasses import dataclass

import pytest
from laws import federations
from laws.federations import ALL, SEED, Cohorts, assert_equal, conv, mlp, noisy, ragged, run, same, start

from fedlag.algorithm import Phase, Steps, Training
from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.federation.sequential import Sequential
from fedlag.federation.vectorized import Vectorized, obstacle
from fedlag.optim import SGD, Adam
from fedlag.run import evaluate

TRAININGS = {
    "epochs": Training(batch=4, epochs=3, optimizer=SGD(lr=0.1)),
    "steps": Training(batch=4, steps=7, optimizer=SGD(lr=0.1)),
    "nothing": Training(batch=4, epochs=0, optimizer=SGD(lr=0.1)),
    "momentum and a fading rate": Training(batch=4, epochs=2, decay=0.5, optimizer=SGD(lr=0.1, momentum=0.9)),
    "Adam": Training(batch=4, epochs=2, optimizer=Adam(lr=0.01)),
}


def assert_as_one_by_one(algorithm, **setup):
    return federations.assert_as_one_by_one(Vectorized, algorithm, **{"net": lambda: conv().double(), **setup})


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_any_training_ends_where_one_by_one_ends(training):
    assert not assert_as_one_by_one(FedAvg(), training=training)


def test_a_phase_has_a_length_and_an_optimiser_of_its_own():
    @dataclass(frozen=True, kw_only=True)
    class Phased(FedAvg):
        def phases(self, epochs):
            return Phase(Steps(3), "head.*", Adam(lr=0.01)), Phase(0), Phase(epochs, "body.*")

    assert not assert_as_one_by_one(Phased())


def test_newcomers_train_beside_those_who_remember_more():
    newcomers = Cohorts([[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]])
    assert not assert_as_one_by_one(REGISTRY["moon"](), sampling=newcomers, number=3)


def test_in_single_precision_one_step_is_the_same_step():
    setup = {"net": conv, "training": Training(batch=8, steps=1, optimizer=SGD(lr=0.1)), "sampling": ALL, "number": 1}
    done, reference = run(FedAvg(), federation=Vectorized, **setup), run(FedAvg(), **setup)
    assert_equal(done.server.params, reference.server.params, 1e-5)


def test_no_example_is_ever_added():
    sizes = []

    @dataclass(frozen=True, kw_only=True)
    class Noting(FedAvg):
        def loss(self, local, params, batch):
            sizes.append(len(batch.y))
            return super().loss(local, params, batch)

    run(Noting(), federation=Vectorized, sampling=ALL, number=1, net=mlp)  # 13, 9, 3, 8 and 6 examples, 8 at once
    assert set(sizes) == {1, 3, 5, 6, 8}


@pytest.mark.parametrize(
    ("name", "net", "reason"),
    [
        ("fedavg", noisy, "random"),
        ("perfedavg", conv, "its examples"),
        ("flash", conv, "its examples"),
        ("gpfl", conv, "its examples"),
        ("fedavg", conv, ""),
        ("scaffold", conv, ""),
        ("ditto", conv, ""),
    ],
)
def test_who_cannot_be_vectorised_is_told_why_at_once_and_trains_all_the_same(name, net, reason):
    algorithm = REGISTRY[name]()
    task, server, _ = start(algorithm, net=net)
    found = obstacle(task, server, ragged(), SEED)
    assert reason in found
    assert bool(found) == bool(reason)
    assert run(algorithm, net=net, federation=Vectorized, number=1).federation.obstacle == found


def test_low_precision_is_for_one_client_at_a_time():
    setup = {"net": conv, "training": Training(precision="bf16")}
    task, server, federation = start(FedAvg(), federation=Vectorized, **setup)
    assert "bfloat16" in obstacle(task, server, ragged(), SEED) == federation.obstacle


@dataclass(frozen=True, kw_only=True)
class Undecided(FedAvg):
    """Steps only where the loss is high: what one client does depends on its numbers."""

    def step(self, local, params, state, batch):
        return super().step(local, params, state, batch) if self.loss(local, params, batch) > 1 else (params, state)


def test_a_step_that_depends_on_numbers_is_left_to_each_client():
    assert "data-dependent" in assert_as_one_by_one(Undecided(), net=lambda: mlp().double())


def test_networks_that_draw_draw_the_same_numbers_as_one_by_one():
    algorithm = FedAvg(tune=(Phase(1),))
    done, reference = (run(algorithm, federation=made, net=noisy) for made in (Vectorized, Sequential))
    assert same(done.server, reference.server)
    fresh = [start(algorithm, federation=made, net=noisy) for made in (Vectorized, Sequential)]
    first, second = (dict(evaluate(*one)) for one in fresh)
    assert same(first, second)
