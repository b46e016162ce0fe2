"""Law 10: a reply that cannot be used costs the round one client, who is named with the reason."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from fedlag.algorithm import Finish
from fedlag.algorithms import FedAvg
from fedlag.federation.sequential import Sequential
from fedlag.flow import Batch, Client
from fedlag.personal import Named
from fedlag.run import evaluate
from fedlag.tree import finite
from laws.federations import ALL, Cohorts, Wrapped, every_method, ragged, run, same

BAD = 1
WEIGHT = "body.5.weight"


def changed(reply, name, value, what="update"):
    return reply._replace(**{what: {**getattr(reply, what), name: value}})


def without(reply, name):
    return reply._replace(update={key: value for key, value in reply.update.items() if key != name})


def spoilt(reply, value):
    tensor = reply.update[WEIGHT].clone()
    tensor[0, 0] = value
    return changed(reply, WEIGHT, tensor)


BAD_REPLIES = {
    "NaN": (lambda reply: spoilt(reply, float("nan")), "finite"),
    "infinity": (lambda reply: spoilt(reply, float("inf")), "finite"),
    "another shape": (lambda reply: changed(reply, WEIGHT, torch.zeros(2, 2)), WEIGHT),
    "a shape that broadcasts": (lambda reply: changed(reply, WEIGHT, torch.zeros(1, 12)), WEIGHT),
    "a missing entry": (lambda reply: without(reply, WEIGHT), WEIGHT),
    "no entries": (lambda reply: reply._replace(update={}), "update"),
    "an extra entry": (lambda reply: changed(reply, "more", torch.zeros(1)), "more"),
    "an extra entry of a name that is no text": (lambda reply: changed(reply, 7, torch.zeros(1)), "7"),
    "an unasked trained entry": (lambda reply: changed(reply, WEIGHT, torch.zeros(5, 12), "trained"), WEIGHT),
    "another type of number": (lambda reply: changed(reply, WEIGHT, torch.zeros(5, 12).double()), WEIGHT),
    "whole numbers": (lambda reply: changed(reply, WEIGHT, torch.zeros(5, 12, dtype=torch.int64)), WEIGHT),
    "an array for a tensor": (lambda reply: changed(reply, WEIGHT, np.zeros((5, 12), np.float32)), WEIGHT),
    "a list for a tensor": (lambda reply: changed(reply, WEIGHT, [[0.0] * 12] * 5), WEIGHT),
    "no update": (lambda reply: reply._replace(update=None), "update"),
    "nothing trained": (lambda reply: reply._replace(trained=None), "trained"),
    "more extra": (lambda reply: reply._replace(extra={"secret": torch.zeros(1)}), "adds"),
    "NaN in extra": (lambda reply: reply._replace(extra={"secret": float("nan")}), "adds|finite"),
    "no examples": (lambda reply: reply._replace(examples=0), "0 examples"),
    "negative examples": (lambda reply: reply._replace(examples=-5), "-5 examples"),
    "huge examples": (lambda reply: reply._replace(examples=10**30), "examples"),
    "fractional examples": (lambda reply: reply._replace(examples=1.5), "1.5 examples"),
    "examples without a number": (lambda reply: reply._replace(examples=None), "None examples"),
    "steps without a number": (lambda reply: reply._replace(steps="many"), "steps"),
    "negative steps": (lambda reply: reply._replace(steps=-1), "steps"),
    "huge steps": (lambda reply: reply._replace(steps=10**30), "steps"),
    "another type": (lambda reply: "hello", "str"),
    "nothing": (lambda reply: None, "NoneType"),
    "an exception": (lambda reply: ConnectionError("the line went dead"), "the line went dead"),
}
bad_replies = pytest.mark.parametrize(("spoil", "reason"), BAD_REPLIES.values(), ids=BAD_REPLIES)


@dataclass
class Tampered(Wrapped):
    """Client BAD's replies are spoilt."""

    spoil: Any = None

    def answer(self, round, client, reply):
        yield client, self.spoil(reply) if client == BAD else reply


def tampered(spoil):
    return lambda federation: Tampered(federation, spoil=spoil)


@bad_replies
def test_a_bad_reply_is_dropped_with_a_reason_that_names_what_is_wrong(spoil, reason):
    done = run(FedAvg(), sampling=ALL, number=2, wrap=tampered(spoil))
    honest = run(FedAvg(), sampling=Cohorts([[0, 2, 3, 4]]), number=2)
    for one in done.rounds:
        assert one.dropped.keys() == {BAD}
        assert re.search(reason, one.dropped[BAD])
        assert BAD not in one.trained
    assert same(done.server, honest.server), "the round is as if that client had not been asked"


@every_method
def test_every_method_goes_on_without_the_client_whose_reply_is_not_finite(algorithm):
    def spoil(reply):
        broken = {name: torch.full_like(value, float("nan")) for name, value in reply.trained.items()}
        return reply._replace(trained=broken, examples=reply.examples if broken else 0)

    done = run(algorithm, sampling=ALL, number=2, wrap=tampered(spoil))
    assert all(one.dropped.keys() == {BAD} for one in done.rounds)
    assert finite(done.server)
    assert done.server.met.keys() == {0, 2, 3, 4}


@bad_replies
def test_when_nobody_s_reply_can_be_used_the_server_stands_as_it_was(spoil, reason):
    class AllTampered(Wrapped):
        def answer(self, round, client, reply):
            yield client, spoil(reply) if round == 1 else reply

    if reason in ("adds", "adds|finite"):
        pytest.skip("what everybody adds alike is the method's own form")
    done = run(FedAvg(personal=Named("head.*")), sampling=ALL, number=3, wrap=AllTampered)
    before, after = done.rounds[0].server, done.rounds[1].server
    assert done.rounds[1].dropped.keys() == {0, 1, 2, 3, 4}
    assert done.rounds[1].step is None
    assert same(after, before._replace(round=2))
    assert not done.rounds[2].dropped


@every_method
def test_when_nobody_answers_the_server_stands_as_it_was(algorithm):
    class Mute(Wrapped):
        def answer(self, round, client, reply):
            if round != 1:
                yield client, reply

    done = run(algorithm, sampling=ALL, number=3, wrap=Mute)
    assert same(done.rounds[1].server, done.rounds[0].server._replace(round=2))
    assert set(done.rounds[1].dropped.values()) == {"it did not answer"}
    assert finite(done.server)


def test_a_second_answer_and_an_answer_nobody_asked_for_change_nothing():
    class Chatty(Wrapped):
        def answer(self, round, client, reply):
            yield client, reply
            yield client, spoilt(reply, 100.0)
            yield 3, reply
            yield 77, reply

    chatty = run(FedAvg(), sampling=Cohorts([[0, 1, 2]]), wrap=Chatty)
    calm = run(FedAvg(), sampling=Cohorts([[0, 1, 2]]))
    assert same(chatty.server, calm.server)
    assert not any(one.dropped for one in chatty.rounds)


def test_after_a_bad_answer_a_second_one_is_not_taken():
    class Retrying(Wrapped):
        def answer(self, round, client, reply):
            if client == BAD:
                yield client, spoilt(reply, float("nan"))
            yield client, reply

    done = run(FedAvg(), sampling=ALL, number=1, wrap=Retrying)
    assert done.rounds[0].dropped.keys() == {BAD}
    assert BAD not in done.server.met


@dataclass(frozen=True, kw_only=True)
class Talkative(FedAvg):
    """Every client adds the same thing to its reply."""

    def finish(self, local, end, steps):
        return Finish({}, {"loss": (torch.ones(2), torch.ones(1)), "time": 0.5})


@pytest.mark.parametrize("bad", [0, 2, 4])
@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"loss": (torch.ones(2), torch.ones(1))},
        {"loss": (torch.ones(3), torch.ones(1)), "time": 0.5},
        {"loss": (torch.ones(2),), "time": 0.5},
        {"loss": (torch.ones(2), torch.ones(1)), "time": "soon"},
    ],
    ids=["none", "part", "another shape", "a shorter tuple", "another type"],
)
def test_the_one_whose_extra_has_another_form_is_dropped_whoever_answers_first(bad, extra):
    class Odd(Wrapped):
        def answer(self, round, client, reply):
            yield client, reply._replace(extra=extra) if client == bad else reply

    done = run(Talkative(), sampling=ALL, number=1, wrap=Odd)
    assert done.rounds[0].dropped.keys() == {bad}
    assert done.server.met.keys() == set(range(5)) - {bad}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_plain_number_in_extra_must_be_finite_too(value):
    class Odd(Wrapped):
        def answer(self, round, client, reply):
            yield client, reply._replace(extra={**reply.extra, "time": value}) if client == BAD else reply

    assert run(Talkative(), sampling=ALL, number=1, wrap=Odd).rounds[0].dropped.keys() == {BAD}


# Clients whose training diverges


def infinite():
    """Client BAD's training examples are not finite."""
    normal = ragged()

    def source(client, part):
        x, y = normal(client, part)
        return Batch(x * float("inf") if (client, part) == (BAD, "train") else x, y)

    return source


@every_method
def test_a_client_that_diverges_is_dropped_and_the_others_go_on(algorithm):
    done = run(algorithm, source=infinite(), sampling=ALL, number=2)
    for one in done.rounds:
        assert one.dropped.keys() == {BAD}
        assert "finite" in one.dropped[BAD]
    assert finite(done.server)
    assert done.federation.clients()[BAD] == Client()
    assert len(evaluate(done.task, done.server, done.federation)) == 5


@every_method
def test_a_client_that_diverges_keeps_its_former_state(algorithm):
    class Poisoned(Sequential):
        """In round 2 client BAD's examples are not finite."""

        def train(self, message, letters, scored):
            self.source = infinite() if message.round >= 2 else ragged()
            yield from super().train(message, letters, scored)

    calm, ill = run(algorithm, number=2, sampling=ALL), run(algorithm, sampling=ALL, federation=Poisoned)
    assert [one.dropped.keys() for one in ill.rounds] == [set(), set(), {BAD}]
    assert same(ill.federation.clients()[BAD], calm.federation.clients()[BAD])
    assert finite(ill.server)
