"""FedProx: loss + mu/2 |w - start|^2."""

import pytest
import torch
from laws.federations import mlp, noisy, run, same

from algorithms.bowls import CENTRES, START, STEEPNESS, W, near, roll
from fedlag.algorithms import FedAvg, FedProx
from fedlag.errors import InputError
from fedlag.personal import Named


@pytest.mark.parametrize("net", [mlp, noisy])
def test_without_the_proximal_term_it_is_fedavg_bit_for_bit(net):
    ours, plain = run(FedProx(mu=0), net=net), run(FedAvg(), net=net)
    assert same(ours.server.params, plain.server.params)


def rest(start, mu):
    """Where the first client's loss and the proximal term are in balance."""
    return (STEEPNESS[0] * CENTRES[0] + mu * start) / (STEEPNESS[0] + mu)


@pytest.mark.parametrize("mu", [0.01, 1.0, 5.0])
def test_a_client_comes_to_rest_between_its_optimum_and_where_it_started(mu):
    done = roll(FedProx, steps=300, clients=1, mu=mu)
    assert near(done.server.params[W], rest(START, mu))


def test_every_round_holds_clients_near_where_that_round_starts():
    done = roll(FedProx, steps=300, clients=1, mu=1.0, number=3)
    assert near(done.server.params[W], rest(rest(rest(START, 1.0), 1.0), 1.0))


def test_personal_layers_are_held_near_the_client_s_own_start():
    done = roll(FedProx, steps=300, mu=1.0, number=2, personal=Named("head.*"))
    assert near(done.federation.clients()[0].params[W], rest(rest(START, 1.0), 1.0))


def test_the_stronger_the_term_the_shorter_the_way():
    ways = [roll(FedProx, steps=20, clients=1, mu=mu).server.params[W] - START for mu in (0.0, 0.1, 0.5, 1.0, 5.0)]
    lengths = torch.stack([way.norm() for way in ways])
    assert (lengths.diff() < 0).all()


@pytest.mark.parametrize("mu", [-0.1, float("nan"), "1"])
def test_a_strength_that_is_no_strength_is_refused(mu):
    with pytest.raises(InputError, match="mu = "):
        FedProx(mu=mu)
