"""Law 5: with everything personal a method runs, and clients move as training alone would have moved them."""

from dataclasses import replace

import pytest

from fedlag.algorithm import Algorithm
from fedlag.algorithms import FedAvg
from fedlag.personal import Named
from fedlag.run import evaluate
from fedlag.tree import finite
from laws.federations import Wrapped, conv, every_method, mlp, run, same

ON_THE_CLIENT = ("receive", "phases", "loss", "correct", "step", "extend", "predict")


def alone(algorithm):
    return replace(algorithm, personal=algorithm.personal | Named("*"))


def trains_plainly(algorithm):
    """Whether a client does what FedAvg's does."""
    return all(getattr(type(algorithm), name) is getattr(Algorithm, name) for name in ON_THE_CLIENT)


@pytest.mark.parametrize("net", [mlp, conv])
@every_method
def test_with_everything_personal_it_runs_and_no_parameter_travels(algorithm, net):
    done = run(alone(algorithm), net=net, wrap=Wrapped)
    names = done.server.params.keys()
    for message, _, replies in done.federation.heard:
        assert not message.shared
        assert message.personal == names
        assert all(message.watched.issuperset(reply.update) for reply in replies.values())
    assert finite(done.server)
    assert all(finite(client) for client in done.federation.clients().values())


@pytest.mark.parametrize("net", [mlp, conv])
@every_method
def test_with_everything_personal_clients_move_as_training_alone_moves_them(algorithm, net):
    if not trains_plainly(algorithm):
        pytest.skip("has a training of its own")
    done, local = run(alone(algorithm), net=net), run(FedAvg(personal=Named("*")), net=net)
    assert same(params(done), params(local))


@pytest.mark.parametrize("net", [mlp, conv])
@every_method
def test_with_everything_personal_a_client_moves_as_if_there_were_no_others(algorithm, net):
    """In a federation where it alone ever takes part, in the same rounds."""
    together = run(alone(algorithm), net=net)
    for one in sorted(params(together)):
        took_part = [one in done.letters for done in together.rounds]
        solitary = run(alone(algorithm), net=net, wrap=lambda inner, one=one: Only(inner, one))
        assert [one in done.letters for done in solitary.rounds] == took_part
        assert same(params(together)[one], params(solitary)[one])
    assert len(evaluate(together.task, together.server, together.federation)) == together.task.clients


class Only(Wrapped):
    """Of those invited, one client trains; the others never answer."""

    def __init__(self, federation, client):
        super().__init__(federation)
        self.client = client

    def train(self, message, letters, scored):
        mine = {client: letter for client, letter in letters.items() if client == self.client}
        return super().train(message, mine, scored)


def params(done):
    return {client: kept.params for client, kept in done.federation.clients().items()}
