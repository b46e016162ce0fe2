"""FedBN: batch normalisation stays at home."""

import pytest
import torch
from laws.federations import ALL, Cohorts, Starting, conv, mlp, run, same, starts
from torch import nn

from fedlag import nets
from fedlag.algorithm import Training
from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.net import Model, Net
from fedlag.round import begin

FEDBN = REGISTRY["fedbn"]()


def test_without_batch_normalisation_it_is_fedavg_bit_for_bit():
    assert same(run(FEDBN, net=mlp).server.params, run(FedAvg(), net=mlp).server.params)


def test_after_one_round_clients_differ_in_batch_normalisation_and_in_nothing_else():
    done = run(Starting(personal=FEDBN.personal), net=conv, number=1, sampling=ALL)
    first, *others = starts(done.task, done.server, done.federation).values()
    normalisation = {f"body.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    assert first.keys() > normalisation
    for name, value in first.items():
        for other in others:
            assert torch.equal(value, other[name]) == (name not in normalisation)


def test_a_client_never_met_starts_from_the_initial_normalisation():
    done = run(Starting(personal=FEDBN.personal), net=conv, number=3, sampling=Cohorts([[0, 1]]))
    late = starts(done.task, done.server, done.federation)[4]
    initial = Model(conv()).init()
    for name, value in late.items():
        assert torch.equal(value, initial[name]) == name.startswith("body.1.")


def personal(net):
    _, server = begin(FEDBN, Model(net), Training(), 2, 0)
    return FEDBN.personal.personal(server.rule)


def batch_norms(net):
    """Their names, found by the type of module."""
    return {
        f"{prefix}.{name}"
        for prefix, module in net.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        for name in ("weight", "bias", "running_mean", "running_var")
    }


@pytest.mark.parametrize("name", nets.NETS)
def test_batch_normalisation_is_told_by_its_type_shortcuts_included(name):
    net = nets.build(name, (1, 32, 32), 10, norm="batch")
    assert personal(net) == batch_norms(net)
    assert personal(net)


def test_other_normalisation_is_shared():
    assert not personal(nets.build("resnet9", (1, 8, 8), 10, norm="group"))
    assert not personal(Net(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.LayerNorm(3)), nn.Linear(3, 2)))
