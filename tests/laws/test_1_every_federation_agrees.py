"""Law 1: every federation gives what clients one by one give, bit for bit."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fedlag.federation.sequential import Sequential
from fedlag.run import evaluate
from laws.federations import NETS, Wrapped, every_method, run, same

FEDERATIONS: dict[str, Callable[..., Any]] = {"sequential": Sequential}


class Reversed(Wrapped):
    """Clients take turns from the last to the first."""

    def train(self, message, letters: Mapping, scored):
        return super().train(message, dict(reversed(letters.items())), scored)


def everything(done) -> Any:
    """What a run leaves behind: servers, clients, scores."""
    scores = [evaluate(done.task, done.server, done.federation, stage) for stage in ("personal", "global")]
    return [one.server for one in done.rounds], done.federation.clients(), scores


@pytest.mark.parametrize("federation", FEDERATIONS.values(), ids=FEDERATIONS)
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
@every_method
def test_a_federation_gives_the_same_bits_as_clients_one_by_one_on_a_second_run(algorithm, net, federation):
    assert same(
        everything(run(algorithm, net=net, federation=federation)), everything(run(algorithm, net=net, number=4))
    )


@every_method
def test_clients_may_take_their_turns_in_any_order(algorithm):
    forwards, backwards = run(algorithm), run(algorithm, wrap=Reversed)
    assert same(everything(forwards), everything(backwards))


@every_method
def test_another_seed_gives_other_results(algorithm, monkeypatch):
    before = run(algorithm, number=2).server.params
    monkeypatch.setattr("laws.federations.SEED", 6)
    assert not same(before, run(algorithm, number=2).server.params)
