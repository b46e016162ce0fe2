"""FedBABU: nobody trains the head until the end."""

from dataclasses import dataclass, field

import pytest
import torch
from laws.federations import conv, mlp, noisy, ragged, run, same, work

from algorithms.by_hand import loaded, trained, values
from fedlag.algorithm import Phase, Training
from fedlag.algorithms import FedAvg, FedBABU
from fedlag.optim import SGD
from fedlag.personal import Nothing
from fedlag.run import evaluate
from fedlag.tree import Params, select, under

SOURCE = ragged()
nets = pytest.mark.parametrize("net", [mlp, noisy])


@dataclass(frozen=True, kw_only=True)
class Observed(FedBABU):
    """Notes the models that are evaluated."""

    tuned: dict[int, Params] = field(default_factory=dict)

    def personalize(self, local):
        self.tuned[local.work.client] = super().personalize(local)
        return self.tuned[local.work.client]


def head(params):
    return select(params, under(params, "head.*"))


@nets
def test_the_head_is_the_same_initial_draw_everywhere_to_the_bit(net):
    """Whatever an optimiser does to weights besides following gradients."""
    training = Training(batch=8, optimizer=SGD(lr=0.1, momentum=0.9, weight_decay=0.1))
    done = run(FedBABU(), net=net, training=training)
    initial = head(values(net()))
    assert same(head(done.server.params), initial)
    for client in done.federation.clients().values():
        assert same(client.params, initial)
    for one in done.rounds:
        for letter in one.letters.values():
            assert not letter.birth or same(letter.birth, initial)


@nets
def test_without_tuning_the_global_body_is_evaluated_under_the_initial_head(net):
    done = run(FedBABU(tune=()), net=net)
    personal, everyone = (evaluate(done.task, done.server, done.federation, stage) for stage in ("personal", "global"))
    assert same(personal, everyone)
    assert same(head(done.server.params), head(values(net())))


@nets
def test_with_a_trained_and_averaged_head_it_is_fedavg_bit_for_bit(net):
    class Unfrozen(FedBABU):
        def phases(self, epochs):
            return (Phase(epochs),)

    ours, theirs = run(Unfrozen(personal=Nothing(), tune=()), net=net), run(FedAvg(), net=net)
    assert same(ours.server.params, theirs.server.params)
    assert same(*(evaluate(done.task, done.server, done.federation) for done in (ours, theirs)))


def test_before_evaluation_everybody_trains_the_whole_model_for_five_epochs():
    done = run(Observed(), net=conv, source=SOURCE)
    evaluate(done.task, done.server, done.federation)
    for client, tuned in done.task.algorithm.tuned.items():
        batches = work(SOURCE, done.server.round, client).stream("tune").batches(8, 5)
        expected = values(trained(loaded(conv(), done.server.params), batches))
        for name, value in expected.items():
            assert torch.allclose(tuned[name], value, atol=1e-5)


@pytest.mark.parametrize(("pattern", "moved"), [("head.*", {"head"}), ("body.*", {"body"}), ("*", {"head", "body"})])
def test_the_head_or_the_body_may_be_tuned_alone(pattern, moved):
    done = run(Observed(tune=(Phase(5, pattern),)))
    evaluate(done.task, done.server, done.federation)
    for tuned in done.task.algorithm.tuned.values():
        changed = {name[:4] for name in tuned if not torch.equal(tuned[name], done.server.params[name])}
        assert changed == moved


def test_tuned_copies_are_not_written_back():
    tuned, bare = run(FedBABU()), run(FedBABU(tune=()))
    scores = [evaluate(done.task, done.server, done.federation) for done in (tuned, bare)]
    assert not same(*scores)
    assert same(tuned.federation.clients(), bare.federation.clients())
    assert same(scores[0], evaluate(tuned.task, tuned.server, tuned.federation)), "a second evaluation starts afresh"
