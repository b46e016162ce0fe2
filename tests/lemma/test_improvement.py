"""The prediction beside losses worked out by other means."""

import math

import pytest
import torch
from laws.federations import mlp, ragged
from torch.nn import functional

from fedlag.aggregate import Mean
from fedlag.algorithm import Training
from fedlag.algorithms.fedavg import FedAvg
from fedlag.errors import InputError
from fedlag.lemma.improvement import Kept, agreement, keep_or_average
from fedlag.net import Model
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.round import begin

CLIENTS = 5
UNIFORM = FedAvg(aggregator=Mean(weighting="uniform"))


def look(lr, algorithm=UNIFORM, rounds=2, optimizer=None, dtype=torch.float64, **training):
    net = mlp().to(dtype)
    source = ragged()

    def double(client, part):
        batch = source(client, part)
        return batch._replace(x=batch.x.to(dtype))

    training = Training(batch=1000, optimizer=optimizer or SGD(lr=lr), **{"steps": 1, **training})
    task, server = begin(algorithm, Model(net), training, CLIENTS, seed=0)
    return keep_or_average(task, server, double, seed=0, rounds=rounds), net, double


def test_after_one_small_full_step_the_loss_changes_as_predicted():
    for case in look(lr=1e-4)[0]:
        assert case.measured == pytest.approx(case.predicted, rel=1e-2)
        assert case.measured < 0


def test_what_is_measured_is_everybody_s_own_layer_in_place_of_the_mean():
    found, net, source = look(lr=0.5, rounds=1)
    batches = [source(client, "train") for client in range(CLIENTS)]
    weights = {name: value.detach().requires_grad_() for name, value in net.named_parameters()}

    def loss(params, batch):
        return functional.cross_entropy(torch.func.functional_call(net, params, (batch.x,)), batch.y)

    grads = [torch.autograd.grad(loss(weights, batch), list(weights.values())) for batch in batches]
    ends = [
        {name: (w - 0.5 * g).detach() for (name, w), g in zip(weights.items(), grad, strict=True)} for grad in grads
    ]
    mean = {name: torch.stack([end[name] for end in ends]).mean(0) for name in weights}
    assert {case.layer for case in found} == {"body.1", "body.3", "head"}
    for case in found:
        names = {name for name in weights if name.rpartition(".")[0] == case.layer}
        kept = [{**mean, **{name: end[name] for name in names}} for end in ends]
        change = torch.stack([loss(own, b) - loss(mean, b) for own, b in zip(kept, batches, strict=True)])
        assert case.measured == pytest.approx(float(change.mean()), rel=1e-9)
        assert case.helped == pytest.approx(float((change < 0).double().mean()))


def test_more_steps_predict_by_the_mean_gradient():
    one, many = (look(lr=1e-5, rounds=1, steps=steps)[0] for steps in (1, 4))
    for short, long in zip(one, many, strict=True):
        assert long.predicted == pytest.approx(4 * short.predicted, rel=1e-2)
        assert long.measured == pytest.approx(long.predicted, rel=1e-2)


def test_only_plain_descent_is_predicted_and_only_averaged_layers_are_compared():
    with pytest.raises(InputError, match="plain SGD"):
        look(lr=0.1, optimizer=SGD(lr=0.1, momentum=0.9))
    with pytest.raises(InputError, match="must be averaged"):
        look(lr=0.1, algorithm=FedAvg(personal=Named("head.*")))


def test_agreement_is_of_ranks_and_ratios():
    cases = [
        Kept(1, "a", 0, 10, -1.0, -2.0, 0.5),
        Kept(1, "b", 5, 10, -2.0, -3.0, 1.0),
        Kept(1, "c", 9, 10, -3.0, 1.0, 0.0),
        Kept(1, "d", 9, 10, -4.0, -9.0, 1.0),
    ]
    found = agreement(cases)
    assert found == (4, 0.75, pytest.approx(1.75), pytest.approx(0.4), pytest.approx(0.10540926), 0.625)
    assert math.isnan(agreement(cases[2:3]).order)
