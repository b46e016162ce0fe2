"""Law 3: inputs are not mutated, and the same inputs give the same outputs."""

from functools import partial

import pytest
import torch
from torch import Tensor

from fedlag.flow import Client
from fedlag.replies import gather
from fedlag.round import address, broadcast, client_evaluate, client_round, server_round
from fedlag.run import NEWCOMER
from fedlag.tree import leaves
from laws.federations import SEED, SOME, every_method, ragged, same, snapshot, start, work

SOURCE = ragged()


@pytest.fixture(autouse=True)
def random_state_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state())


def template(model):
    """The module a model computes with: parameters and buffers."""
    return {**dict(model.net.named_parameters()), **dict(model.net.named_buffers())}


def examples():
    return [SOURCE(client, part) for client in range(5) for part in ("train", "validation", "test")]


def twice(function, *inputs):
    """What the function gives, checked to leave its inputs alone and to give it again."""
    before = snapshot(inputs)
    first = function(*inputs)
    assert same(before, inputs), "inputs were changed"
    kept = snapshot(first)
    assert same(kept, function(*inputs)), "the second call gave something else"
    assert same(kept, first), "the second call changed what the first returned"
    return first


@every_method
def test_the_functions_of_a_round_are_pure(algorithm):
    task, server, _ = start(algorithm)
    before = snapshot((template(task.model), examples()))
    clients = dict.fromkeys(range(task.clients), Client())
    for round in range(2):
        cohort = SOME.cohort(task.clients, SEED, round)
        message = twice(partial(broadcast, task), server)
        answers = {}
        for client in cohort:
            letter = twice(partial(address, task), server, client)
            training = partial(client_round, task, work=work(SOURCE, round, client, ("test",)))
            clients[client], answers[client] = twice(training, message, letter, clients[client])
        gathered = twice(partial(gather_all, task), message, server.params, cohort, answers)
        assert not gathered.dropped
        server, _ = twice(partial(server_round, task), server, gathered.replies)

        message = broadcast(task, server)
        for client, kept in clients.items():
            at_hand = work(SOURCE, round, client, ("validation", "test"))
            letter, newcomer = address(task, server, client), address(task, server, NEWCOMER)
            twice(partial(client_evaluate, task, work=at_hand), message, letter, kept)
            twice(partial(client_evaluate, task, work=at_hand, stage="global"), message, newcomer, kept)
    assert same(before, (template(task.model), examples()))


def gather_all(task, message, params, cohort, answers):
    return gather(task, message, params, cohort, answers.items())


@every_method
def test_the_server_keeps_no_tensor_that_a_client_could_still_change(algorithm):
    """Overwriting what was uploaded, after the round, changes nothing on the server."""
    task, server, federation = start(algorithm)
    for _ in range(2):
        cohort = tuple(range(task.clients))
        message = broadcast(task, server)
        answers = dict(federation.train(message, {client: address(task, server, client) for client in cohort}, ()))
        gathered = gather_all(task, message, server.params, cohort, answers)
        server, _ = server_round(task, server, gathered.replies)
        before = snapshot(server)
        for value in leaves((tuple(answers.values()), gathered.replies)):
            if isinstance(value, Tensor):
                value.zero_()
        assert same(before, server)
