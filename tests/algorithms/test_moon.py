"""MOON: features like the received model's, unlike the client's previous one's."""

import math

import numpy as np
import pytest
import torch
from laws.federations import ALL, SIZES, Cohorts, Wrapped, close, conv, mlp, noisy, ragged, run, same, work
from torch.nn import functional

from algorithms.by_hand import loaded, trained, values
from fedlag.algorithm import Training
from fedlag.algorithms import MOON, FedAvg
from fedlag.algorithms.moon import contrast
from fedlag.errors import InputError
from fedlag.optim import SGD

SOURCE = ragged()
nets = pytest.mark.parametrize("net", [mlp, noisy])


def features(number=3, examples=7, width=5):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(examples, width, generator=generator, dtype=torch.float64) for _ in range(number)]


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_contrast_is_the_printed_ratio_of_exponentials(number, temperature):
    own, *others = (one.numpy() for one in features(1 + number))
    unit = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in (own, *others)]
    pulls = [np.exp((unit[0] * other).sum(1) / temperature) for other in unit[1:]]
    expected = -np.log(pulls[0] / sum(pulls)).mean()
    own, *others = features(1 + number)
    assert contrast(own, others, temperature).item() == pytest.approx(expected, rel=1e-12)


def test_when_previous_and_received_agree_it_is_log_two_and_pulls_nowhere():
    own, other = features(2)
    own.requires_grad_()
    value = contrast(own, [other, other], 0.5)
    assert value.item() == pytest.approx(math.log(2), rel=1e-15)
    assert torch.autograd.grad(value, own)[0].abs().max() < 1e-16


def test_it_falls_towards_the_received_model_and_rises_towards_the_previous_one():
    received, previous = features(2)
    assert contrast(received, [received, previous], 0.5) < contrast(previous, [received, previous], 0.5)


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_no_temperature_makes_it_infinite(temperature):
    own, *others = features()
    assert math.isfinite(contrast(own, others, temperature))


def test_features_of_zero_have_a_finite_contrast_and_gradient():
    own, *others = (torch.zeros(4, 5) for _ in range(3))
    value = contrast(own.requires_grad_(), others, 0.5)
    assert torch.isfinite(value)
    assert torch.isfinite(torch.autograd.grad(value, own)[0]).all()


@nets
def test_without_the_contrast_it_is_fedavg_bit_for_bit(net):
    assert same(run(MOON(mu=0), net=net).server.params, run(FedAvg(), net=net).server.params)


@nets
def test_everybody_s_first_round_is_fedavg_s_bit_for_bit(net):
    def told(algorithm):
        return run(algorithm, net=net, number=1, sampling=ALL, wrap=Wrapped).federation.heard[0][2]

    ours, theirs = told(MOON(mu=5.0)), told(FedAvg())
    assert ours.keys() == set(range(5))
    assert same(ours, theirs)


def test_it_is_the_printed_algorithm():
    """Previous is where the client's own last training ended; both frozen models evaluate; absence changes nothing."""
    cohorts, mu, temperature = [[0, 1, 2], [1, 3], [0, 3, 4], [0, 1, 2, 3, 4]], 2.0, 0.7
    net, previous = conv(), {}
    for round, cohort in enumerate(cohorts):
        ends = {}
        for client in cohort:
            received, before = loaded(net).eval(), loaded(previous.get(client, net)).eval()

            def loss(local, batch, received=received, before=before):
                own = local.body(batch.x)
                with torch.no_grad():
                    frozen = [one.body(batch.x) for one in (received, before)]
                towards, away = ((torch.cosine_similarity(own, one) / temperature).exp() for one in frozen)
                contrast = -(towards / (towards + away)).log().mean()
                return functional.cross_entropy(local.head(own), batch.y) + mu * contrast

            ends[client] = trained(net, work(SOURCE, round, client).stream("train").batches(8, 2), loss=loss)
        previous |= ends
        total = sum(SIZES[client] for client in cohort)
        mean = {n: sum(SIZES[c] / total * values(end)[n] for c, end in ends.items()) for n in values(net)}
        net = loaded(net, mean)
    training = Training(epochs=2, batch=8, optimizer=SGD(lr=0.1))
    setup = {"net": conv, "source": SOURCE, "training": training, "sampling": Cohorts(cohorts), "number": 4}
    done = run(MOON(mu=mu, temperature=temperature), **setup)
    assert close(done.server.params, values(net), 1e-5)
    for client, kept in done.federation.clients().items():
        assert close(kept.params, values(previous[client]), 1e-5)


@pytest.mark.parametrize("settings", [{"mu": -1.0}, {"temperature": 0}])
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(InputError, match=f"{next(iter(settings))} = "):
        MOON(**settings)
