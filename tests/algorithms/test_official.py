"""fedlag-official: what the published code measures, and that nothing follows from it."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from laws.federations import ALL, Wrapped, conv, mlp, ragged, replies, run, same, scores, work
from torch.nn import functional

from fedlag.algorithm import Training
from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.divergence import conflict, gram
from fedlag.errors import InputError
from fedlag.layers import anatomy
from fedlag.net import Model
from fedlag.official import Measured, Official
from fedlag.personal import WarmStart
from fedlag.replies import weigh

SOURCE = ragged()


def official(net=mlp, number=4, **settings):
    rule = Official(**{"warmup": 2, **settings})
    return run(FedAvg(personal=rule), net=net, number=number, sampling=ALL, wrap=Wrapped)


def told(witness):
    return replies(witness)._replace(witness=witness)


@pytest.mark.parametrize("net", [mlp, conv])
def test_it_is_training_alone_from_a_warm_start(net):
    ours = official(net, number=5)
    warm = run(FedAvg(personal=WarmStart(warmup=2)), net=net, number=5, sampling=ALL)
    assert same(ours.server.params, warm.server.params)
    assert same(scores(ours), scores(warm))
    for client, kept in ours.federation.clients().items():
        assert same(kept.params, warm.federation.clients()[client].params)


def test_after_the_warm_up_nothing_is_communicated_any_more():
    done = official()
    for one, (message, letters, answers) in zip(done.rounds, done.federation.heard, strict=True):
        warming = one.number < 2
        assert bool(message.shared) == warming
        for reply in answers.values():
            sent = [reply.update, reply.trained, reply.witness]
            assert [bool(values) for values in sent] == [warming, False, warming]
        assert any(sum(names.values()) for names in one.sent.values()) == warming
        assert not any(sum(weigh(letter.birth).values()) for letter in letters.values())
        assert bool(one.step.conflicts) == warming


def test_the_witness_is_the_gradient_of_the_last_mini_batch_at_the_trained_model():
    done = official(number=1)
    ((message, _, answers),) = done.federation.heard
    for client, reply in answers.items():
        module = mlp()
        module.load_state_dict({name: message.shared[name] + reply.update[name] for name in message.shared})
        *_, last = work(SOURCE, 0, client).stream("train").batches(8, 1)
        functional.cross_entropy(module(last.x), last.y).backward()
        expected = {name: value.grad for name, value in module.named_parameters()}
        assert reply.witness.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.allclose(reply.witness[name], value, atol=1e-6)


def test_after_the_warm_up_no_gradient_is_worked_out():
    local = SimpleNamespace(message=SimpleNamespace(round=2))  # and nothing else to look at
    assert Official(warmup=2).witness(local, {}) == {}


def test_a_last_batch_of_one_example_is_seen_as_it_was_trained_on():
    """BatchNorm cannot train on it; the witness must not either."""
    done = official(conv, number=1)
    assert any(len(SOURCE(client, "train").y) % 8 == 1 for client in range(5))
    assert not done.rounds[0].dropped


def test_conflicts_are_counted_tensor_by_tensor_and_added_up_over_the_warm_up():
    done, totals = official(warmup=3, k=2), Counter()
    for one, (_, _, answers) in list(zip(done.rounds, done.federation.heard, strict=True))[:3]:
        for name in done.server.params:
            gradients = torch.stack([reply.witness[name] for reply in answers.values()]).flatten(1).double()
            unit = functional.normalize(gradients, dim=1)
            count = int(((unit @ unit.T).triu(1) < 0).sum())
            assert one.step.conflicts[name].count == count
            totals[name] += count
    state = done.server.rule
    assert state.totals == totals
    assert len(set(totals.values())) > 1
    assert state.chosen == tuple(sorted(totals, key=lambda name: (-totals[name], list(totals).index(name)))[:2])


def test_k_tensors_are_found_even_if_none_ever_conflicts_and_ties_go_to_the_first():
    names = anatomy(Model(mlp()), Model(mlp()).init())
    rule = Official(k=3, warmup=1)
    given = told({name: torch.ones(4, 2) for name in names.names})
    state, conflicts = rule.update(rule.init(names), given, 0)
    assert not any(c.count for c in conflicts.values())
    assert state.chosen == names.names[:3]
    assert rule.personal(state) == set(names.names)
    assert not rule.watched(state)


def test_what_was_found_has_no_effect():
    """Whatever k and xi are."""
    one, other = official(k=0), official(k=5, xi=-0.9)
    assert same(one.server.params, other.server.params)
    assert len(one.server.rule.chosen) == 0
    assert len(other.server.rule.chosen) == 5


def test_the_threshold_is_strict_and_its_own():
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.1]])
    state = Official().init(anatomy(Model(mlp()), Model(mlp()).init()))
    for xi, count in ((0.0, 1), (-0.999, 0)):
        _, conflicts = Official(xi=xi).update(state, told({"head.bias": rows}), 0)
        assert conflicts["head.bias"].count == count == conflict(gram([rows]), xi).count


def test_without_local_training_there_is_no_last_batch_and_nothing_is_counted():
    done = run(FedAvg(personal=Official(warmup=1)), number=2, training=Training(epochs=0), sampling=ALL)
    assert not done.rounds[0].step.conflicts
    assert set(done.server.rule.totals.values()) == {0}


def test_the_published_code_s_settings_are_the_defaults():
    """Two tensors, xi = 0, and of a hundred rounds or more min(R // 2, 30) + 1 = 31 to warm up."""
    assert REGISTRY["fedlag-official"]().personal == Official(k=2, xi=0.0, warmup=31)
    assert isinstance(Official().init(anatomy(Model(mlp()), Model(mlp()).init())), Measured)


@pytest.mark.parametrize("settings", [{"k": -1}, {"xi": 0.1}, {"xi": -1.0}, {"warmup": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    (name,) = settings
    with pytest.raises(InputError, match=name):
        Official(**settings)
