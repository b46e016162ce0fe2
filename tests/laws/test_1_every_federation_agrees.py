"""Law 1: every federation gives what clients one by one give, bit for bit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fedlag.federation.sequential import Sequential
from fedlag.federation.threaded import Threaded
from laws.federations import Wrapped, conv, every_bare_method, every_method, noisy, ordinary, run, same, scores

FEDERATIONS: dict[str, Callable[..., Any]] = {"sequential": Sequential, "threaded": partial(Threaded, workers=3)}
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


@every_method
def test_clients_may_take_their_turns_in_any_order(algorithm):
    assert_same_bits(run(algorithm, wrap=Backwards), ordinary(algorithm))


@every_bare_method
def test_another_seed_gives_other_results(algorithm, monkeypatch):
    before = ordinary(algorithm).run.server.params
    monkeypatch.setattr("laws.federations.SEED", 6)
    assert not same(run(algorithm).server.params, before)
