"""Law 5: with everything personal a method runs, and clients move as training alone would have moved them."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from fedlag.algorithm import Algorithm
from fedlag.algorithms import FedAvg
from fedlag.personal import Named
from fedlag.tree import finite
from laws.federations import AVERAGING, Wrapped, every_averaging_method, ordinary, parametrised, run, same

ON_THE_CLIENT = ("extend", "prepare", "receive", "phases", "loss", "correct", "step", "predict")
ALONE = {}
LOCAL = FedAvg(personal=Named("*"))


def alone(algorithm):
    """The method with everything personal; one and the same each time it is asked for."""
    return ALONE.setdefault(id(algorithm), replace(algorithm, personal=algorithm.personal | Named("*")))


def trains_plainly(algorithm):
    """Whether a client does what FedAvg's does."""
    return all(getattr(type(algorithm), name) is getattr(Algorithm, name) for name in ON_THE_CLIENT)


def params(done):
    return {client: kept.params for client, kept in done.federation.clients().items()}


@every_averaging_method
def test_with_everything_personal_it_runs_and_no_parameter_travels(algorithm):
    done = ordinary(alone(algorithm))
    names = done.run.server.params.keys()
    for message, _, replies in done.heard:
        assert not message.shared
        assert message.personal == names
        assert all(message.watched.issuperset(reply.update) for reply in replies.values())
    assert finite(done.run.server)
    assert all(finite(client) for client in done.run.federation.clients().values())
    assert done.scores["personal"].keys() == set(range(done.run.task.clients))


@every_averaging_method
def test_with_everything_personal_clients_move_as_training_alone_moves_them(algorithm):
    if not trains_plainly(algorithm):
        pytest.skip("trains in a way of its own")
    assert same(params(ordinary(alone(algorithm)).run), params(ordinary(LOCAL).run))


@dataclass
class Only(Wrapped):
    """Of those invited only one client trains; the others never answer."""

    client: int = 0

    def train(self, message, letters, scored):
        return super().train(message, {c: letter for c, letter in letters.items() if c == self.client}, scored)


@parametrised(AVERAGING)
def test_with_everything_personal_a_client_moves_as_if_there_were_no_others(algorithm):
    together = ordinary(alone(algorithm)).run
    ((keenest, times),) = Counter(client for one in together.rounds for client in one.letters).most_common(1)
    assert times > 1
    solitary = run(alone(algorithm), wrap=lambda federation: Only(federation, client=keenest))
    assert same(params(together)[keenest], params(solitary)[keenest])
