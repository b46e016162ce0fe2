"""FedLAG under Flower's privacy wrappers and mods; where it cannot work, it says so."""

import re

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from fedlag import tree
from fedlag.errors import InputError
from fedlag.flower import FedLAG, keep_personal
from fedlag.flower.instructions import to_tensors
from tests.flower.nodes import Nodes
from tests.flower.test_strategy import CONFIG, disk, initial, run, trained, with_mods

ROOMY = 1e6  # a clipping norm that nothing reaches

WRAPPERS = {
    "server, fixed": (DifferentialPrivacyServerSideFixedClipping, "clipping_norm", None),
    "server, adaptive": (DifferentialPrivacyServerSideAdaptiveClipping, "initial_clipping_norm", None),
    "client, fixed": (DifferentialPrivacyClientSideFixedClipping, "clipping_norm", fixedclipping_mod),
    "client, adaptive": (DifferentialPrivacyClientSideAdaptiveClipping, "initial_clipping_norm", adaptiveclipping_mod),
}


@pytest.fixture(autouse=True)
def noise():
    np.random.seed(0)  # Flower's noise comes from NumPy's global generator


def local(clip=ROOMY, sensitivity=0.0):
    return LocalDpMod(clip, sensitivity, epsilon=1.0, delta=0.1)


def wrapped(kind, clip, noise, folder, num_rounds=5, **arguments):
    """A run of a wrapper around FedLAG; returns FedLAG and the nodes."""
    wrapper, norm, mod = WRAPPERS[kind]
    inner = FedLAG(**{"k": 1, "warmup": 2, "mode": "frozen"} | arguments)
    nodes = Nodes(with_mods(*[mod] if mod else [], keep_personal), folder)
    around = wrapper(inner, noise, num_sampled_clients=4, **{norm: clip})
    around.start(nodes, floats(), num_rounds, train_config=ConfigRecord(CONFIG))
    return inner, nodes


def floats():
    """The app's model; clipping is for floating-point numbers only, so this network has no counters."""
    return initial()


def close(one, other, tolerance=1e-5):
    one, other = to_tensors(one), to_tensors(other)
    return all(torch.allclose(value, other[name], rtol=0, atol=tolerance) for name, value in one.items())


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_that_neither_clips_nor_adds_noise_changes_nothing_but_rounding(tmp_path, kind):
    inner, nodes = wrapped(kind, ROOMY, 0.0, tmp_path / "wrapped")
    _, alone, _ = run(tmp_path / "alone", 5, mode="frozen")
    assert inner.personal == alone.personal != frozenset()
    shared = [name for name in to_tensors(alone.arrays) if name not in inner.personal]
    ours, theirs = (tree.select(to_tensors(one.arrays), shared) for one in (inner, alone))
    assert all(torch.allclose(value, theirs[name], atol=1e-5) for name, value in ours.items())
    assert not inner.dropped
    assert set(trained(nodes.sent)[-1].content["arrays"]) == set(shared)
