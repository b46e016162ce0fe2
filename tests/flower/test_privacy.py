"""FedLAG under Flower's privacy wrappers and mods; where it cannot work, it says so."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.server import LegacyContext
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from safetensors.torch import load
from torch import nn

from fedlag import tree
from fedlag.errors import InputError
from fedlag.flower import FedLAG, keep_personal
from fedlag.flower.instructions import to_tensors
from fedlag.net import Net
from tests.flower import test_strategy
from tests.flower.nodes import Nodes, joins_late
from tests.flower.test_strategy import CONFIG, disk, initial, run, trained, with_mods

ROOMY = 1e6  # a clipping norm that nothing reaches

WRAPPERS = {
    "server, fixed": (DifferentialPrivacyServerSideFixedClipping, "clipping_norm", None),
    "server, adaptive": (DifferentialPrivacyServerSideAdaptiveClipping, "initial_clipping_norm", None),
    "client, fixed": (DifferentialPrivacyClientSideFixedClipping, "clipping_norm", fixedclipping_mod),
    "client, adaptive": (DifferentialPrivacyClientSideAdaptiveClipping, "initial_clipping_norm", adaptiveclipping_mod),
}
each_wrapper = pytest.mark.parametrize("kind", WRAPPERS)


def network():
    """Without BatchNorm, whose count of batches would be part of the length that Flower clips by."""
    torch.manual_seed(0)
    return Net(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU()), nn.Linear(5, 3))


@pytest.fixture(autouse=True)
def _prepared(monkeypatch):
    monkeypatch.setattr(test_strategy, "network", network)
    np.random.seed(0)  # Flower's noise comes from NumPy's global generator


def wrapped(kind, clip, noise, folder, num_rounds=5, inner=None, ids=None):
    """A run of a wrapper around FedLAG; returns FedLAG and the nodes."""
    wrapper, norm, mod = WRAPPERS[kind]
    inner = inner or FedLAG(k=1, warmup=2, mode="frozen")
    nodes = Nodes(with_mods(*[mod] if mod else [], keep_personal), folder)
    around = wrapper(inner, noise, num_sampled_clients=4, **{norm: clip})
    around.start(nodes, initial(), num_rounds, train_config=ConfigRecord(CONFIG))
    return inner, nodes


def rounds_sent(nodes):
    """What the first node was sent to train from, round by round."""
    return [to_tensors(m.content["arrays"]) for m in trained(nodes.sent) if m.metadata.dst_node_id == 10]


@each_wrapper
def test_a_wrapper_that_neither_clips_nor_adds_noise_changes_nothing_but_rounding(tmp_path, kind):
    inner, nodes = wrapped(kind, ROOMY, 0.0, tmp_path / "wrapped")
    _, alone, _ = run(tmp_path / "alone", 5, mode="frozen")
    assert inner.personal == alone.personal != frozenset()
    for name, value in to_tensors(alone.arrays).items():
        if name not in inner.personal:
            assert torch.allclose(to_tensors(inner.arrays)[name], value, rtol=0, atol=1e-5)
    assert not inner.dropped
    assert rounds_sent(nodes)[-1].keys().isdisjoint(inner.personal)


@each_wrapper
def test_what_nodes_move_the_shared_layers_by_is_clipped(tmp_path, kind):
    clip = 1e-3
    inner, nodes = wrapped(kind, clip, 0.0, tmp_path)
    assert inner.personal
    sent = rounds_sent(nodes)
    for before, after in pairwise(sent):
        moved = float(tree.sq_norm(tree.sub(after, before)).sqrt())
        assert 0 < moved <= clip * (1.01 if "fixed" in kind else 10)  # an adaptive norm grows


@each_wrapper
def test_with_noise_the_nodes_keep_layers_and_all_else_is_noised(tmp_path, kind):
    noisy, _ = wrapped(kind, 1.0, 0.3, tmp_path)
    quiet, _ = wrapped(kind, 1.0, 0.0, tmp_path / "quiet")
    assert noisy.personal
    assert not noisy.dropped
    for name, value in to_tensors(noisy.arrays).items():
        assert not torch.equal(value, to_tensors(quiet.arrays)[name])


def test_a_newcomer_is_sent_no_personal_layer_that_noise_was_not_added_to(tmp_path):
    """The average of the round in which a layer became personal never passed through the wrapper."""
    inner = FedLAG(k=1, warmup=2, mode="frozen")
    nodes = joins_late(with_mods(keep_personal), tmp_path)
    DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, 3).start(
        nodes, initial(), 5, train_config=ConfigRecord(CONFIG)
    )
    last_whole = rounds_sent(nodes)[1]
    (first, *_) = [message for message in nodes.sent if message.metadata.dst_node_id == 40]
    birth = load(first.content["config"]["fedlag-birth"])
    assert birth.keys() == inner.personal != set()
    for name, value in birth.items():
        assert torch.equal(value, last_whole[name])


def local(clip=ROOMY, sensitivity=0.0):
    return LocalDpMod(clip, sensitivity, epsilon=1.0, delta=0.1)


class Seen(dict):
    """A mod next to the app: what every node ended its last training with."""

    def __call__(self, message, context, call_next):
        reply = call_next(message, context)
        self[context.node_id] = to_tensors(reply.content["arrays"])
        return reply


@pytest.mark.parametrize(("mode", "outside"), [("frozen", True), ("frozen", False), ("dynamic", False)])
def test_local_noise_is_in_all_that_leaves_and_outside_the_mod_in_nothing_that_stays(tmp_path, mode, outside):
    seen, noise = Seen(), local(1.0, sensitivity=0.01)
    mods = (noise, keep_personal, seen) if outside else (keep_personal, noise, seen)
    _, strategy, nodes = run(tmp_path, 5, mode=mode, nodes=Nodes(with_mods(*mods), tmp_path))
    assert not strategy.dropped
    for reply in trained(nodes.received)[-4:]:
        node = reply.metadata.src_node_id
        for record in reply.content.array_records.values():
            for name, value in to_tensors(record).items():
                assert not torch.equal(value, seen[node][name])
        kept = disk(tmp_path, node).load(before=5).params
        assert kept
        for name, value in kept.items():
            assert torch.equal(value, seen[node][name]) == outside


def test_noiseless_local_privacy_changes_nothing_but_rounding(tmp_path):
    nodes = Nodes(with_mods(local(), keep_personal), tmp_path / "local")
    _, strategy, _ = run(tmp_path, 5, mode="frozen", nodes=nodes)
    _, alone, _ = run(tmp_path / "alone", 5, mode="frozen")
    for name, value in to_tensors(alone.arrays).items():
        assert torch.allclose(to_tensors(strategy.arrays)[name], value, rtol=0, atol=1e-5)


# Where it cannot work


def test_nothing_of_a_watched_layer_gets_past_local_privacy(tmp_path, caplog):
    """In dynamic mode with the noise outside, Flower's mod refuses, and no round counts."""
    nodes = Nodes(with_mods(local(), keep_personal), tmp_path)
    _, strategy, _ = run(tmp_path, 5, nodes=nodes)
    assert strategy.personal
    assert [times for who, times in strategy.dropped.items() if "partition" in who] == [2] * 4  # of rounds 4 and 5
    assert "LocalDpMod expects exactly one ArrayRecord" in caplog.text
    assert "Round 5 changes nothing" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"mode": "dynamic"}, 'mode="frozen"'),
        ({"mode": "frozen", "norm": "local"}, 'a norm other than "local"'),
        ({"mode": "frozen", "state": "somewhere"}, "state cannot be kept"),
    ],
)
def test_inside_a_wrapper_what_cannot_work_is_refused(tmp_path, arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        wrapped("server, fixed", ROOMY, 0.0, tmp_path, inner=FedLAG(k=1, warmup=2, **arguments))


@pytest.mark.parametrize("fit", [None, SecAggPlusWorkflow(3, 2)])
def test_secure_aggregation_is_refused_in_a_sentence(tmp_path, fit):
    context = LegacyContext(Context(1, 1, {}, RecordDict(), {}), strategy=FedLAG())
    with pytest.raises(InputError, match="secure aggregation hides"):
        DefaultWorkflow(fit_workflow=fit)(Nodes(None, tmp_path), context)
