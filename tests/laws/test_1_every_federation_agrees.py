"""Law 1: every federation gives what clients one by one give, bit for bit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fedlag.federation.batched import Batched
from fedlag.federation.processes import Processes
from fedlag.federation.sequential import Sequential
from fedlag.federation.threaded import Threaded
from fedlag.federation.vectorized import Vectorized
from laws.federations import (
    Wrapped,
    assert_equal,
    conv,
    double,
    every_bare_method,
    every_method,
    mlp,
    noisy,
    ordinary,
    ragged,
    run,
    same,
    scores,
)

FEDERATIONS: dict[str, Callable[..., Any]] = {
    "sequential": Sequential,
    "threaded": partial(Threaded, workers=3),
    "processes": partial(Processes, workers=3),
    "batched": Batched,  # which takes no convolutional network
}
AT_ONCE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # the same sums in another order
    "batched": (Batched, mlp),
    "vectorized": (Vectorized, conv),
}
NETS = {"which draws": noisy, "which draws nothing": conv}


class Backwards(Wrapped):
    """Clients take turns from the last to the first."""

    def train(self, message, letters, scored):
        return super().train(message, dict(reversed(letters.items())), scored)


def assert_same_bits(done, reference):
    assert same([one.server for one in done.rounds], [one.server for one in reference.run.rounds])
    assert same(done.federation.clients(), reference.run.federation.clients())
    assert same(scores(done), reference.scores)


@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
@pytest.mark.parametrize("federation", FEDERATIONS.values(), ids=FEDERATIONS)
@every_method
def test_a_federation_gives_the_same_bits_as_clients_one_by_one(algorithm, federation, net):
    """And clients one by one give the same bits when they run again."""
    assert_same_bits(run(algorithm, federation=federation, net=net), ordinary(algorithm, net=net))


@pytest.mark.parametrize(("federation", "net"), AT_ONCE.values(), ids=AT_ONCE)
@every_method
def test_many_clients_at_once_end_where_one_by_one_they_end(algorithm, federation, net):
    """Whole rounds in float64: model, what clients keep, what everybody scores."""
    setup = {"net": lambda: net().double(), "source": double(ragged())}
    done, reference = run(algorithm, federation=federation, **setup), run(algorithm, **setup)
    assert_equal([one.server for one in done.rounds], [one.server for one in reference.rounds], 1e-10)
    assert_equal(done.federation.clients(), reference.federation.clients(), 1e-10)
    assert_equal(scores(done), scores(reference), 1e-10)


@every_method
def test_clients_may_take_their_turns_in_any_order(algorithm):
    assert_same_bits(run(algorithm, wrap=Backwards), ordinary(algorithm))


@every_bare_method
def test_another_seed_gives_other_results(algorithm, monkeypatch):
    before = ordinary(algorithm).run.server.params
    monkeypatch.setattr("laws.federations.SEED", 6)
    assert not same(run(algorithm).server.params, before)
