"""FedSpeed: gradients from uphill, a proximal term, and a correction for its bias."""

import pytest
import torch
from laws.federations import ALL, Cohorts, close, mlp, noisy, run, same
from torch.func import functional_call, grad
from torch.nn import functional

from algorithms.bowls import COHORTS, LR, START, W, near, roll, slope
from algorithms.memories import COMES_AND_GOES
from fedlag import tree
from fedlag.aggregate import Mean
from fedlag.algorithm import Training
from fedlag.algorithms import FedAvg, FedDyn, FedSpeed
from fedlag.errors import InputError
from fedlag.lag import LAG
from fedlag.optim import SGD
from fedlag.personal import Named

UNIFORM = FedAvg(aggregator=Mean(weighting="uniform"))
RHO, PENALTY, ALPHA = 0.3, 0.5, 0.7


@pytest.mark.parametrize("corrections", ["participants", "everyone"])
@pytest.mark.parametrize("net", [mlp, noisy])
def test_without_uphill_and_penalty_it_is_fedavg_with_uniform_weights_bit_for_bit(net, corrections):
    ours = run(FedSpeed(rho=0, penalty=0, corrections=corrections), net=net)
    assert same(ours.server.params, run(UNIFORM, net=net).server.params)


@pytest.mark.parametrize("corrections", ["participants", "everyone"])
def test_it_is_the_printed_algorithm_with_partial_participation(corrections):
    w, correction = START, [torch.zeros_like(START)] * 3
    for cohort in COHORTS:
        ends, given = [], []
        for client in cohort:
            y = w
            for _ in range(4):
                here = slope(y, client)
                there = slope(y + RHO * here / here.norm(), client)
                g = (1 - ALPHA) * here + ALPHA * there
                y = y - LR * (g - correction[client] + PENALTY * (y - w))
            correction[client] = correction[client] - PENALTY * (y - w)
            ends.append(y)
            given.append(y - correction[client] / PENALTY)
        w = sum(given) / len(given)
        if corrections == "everyone":
            w = sum(ends) / len(ends) - sum(correction) / PENALTY / 3
    settings = {"rho": RHO, "penalty": PENALTY, "alpha": ALPHA, "corrections": corrections}
    done = roll(FedSpeed, steps=4, number=len(COHORTS), sampling=Cohorts(COHORTS), **settings)
    assert near(done.server.params[W], w)
    for client, kept in done.federation.clients().items():
        assert near(kept.memory[W], correction[client])


@pytest.mark.parametrize("rule", [None, LAG(k=1, warmup=1), COMES_AND_GOES], ids=["bare", "lag", "scheduled"])
def test_with_everyone_s_corrections_and_nothing_uphill_it_is_feddyn_bit_for_bit(rule):
    settings = {"personal": rule} if rule else {}
    ours = run(FedSpeed(rho=0, penalty=0.2, corrections="everyone", **settings), number=8)
    theirs = run(FedDyn(alpha=0.2, **settings), number=8)
    assert same(ours.server.params, theirs.server.params)
    assert same(ours.federation.clients(), theirs.federation.clients())


def test_when_everybody_takes_part_participants_are_everyone():
    one, other = (run(FedSpeed(corrections=which), sampling=ALL) for which in ("participants", "everyone"))
    assert close(one.server.params, other.server.params, 1e-5)


def test_the_uphill_step_has_length_rho_over_all_layers_together():
    """One step of one client, against torch.func on the module itself."""
    seen = []

    class Watching(FedSpeed):
        def loss(self, local, params, batch):
            seen.append(({n: v.detach() for n, v in params.items()}, batch))
            return super().loss(local, params, batch)

    done = run(Watching(rho=RHO), net=mlp, number=1, clients=1, training=Training(batch=100))
    (start, batch), (above, same_batch) = seen
    assert same(tuple(batch), tuple(same_batch))
    net = mlp()
    g = grad(lambda p: functional.cross_entropy(functional_call(net, p, (batch.x,)), batch.y))(start)
    length = tree.sq_norm(g).sqrt()
    assert close(above, tree.add(start, g, alpha=float(RHO / length)))
    assert done.server.params.keys() == above.keys()


def test_statistics_follow_the_examples_on_the_spot_and_move_once_a_batch():
    one_step = Training(steps=1, batch=8, optimizer=SGD(lr=0.1))
    ours, plain = (run(each, number=1, training=one_step) for each in (FedSpeed(rho=5.0), UNIFORM))
    carried = ours.task.carried
    assert carried
    assert same(tree.select(ours.server.params, carried), tree.select(plain.server.params, carried))
    assert not same(ours.server.params, plain.server.params)


def test_a_gradient_of_zero_points_nowhere():
    class Flat(FedSpeed):
        def loss(self, local, params, batch):
            return 0 * super().loss(local, params, batch)

    done = run(Flat(), number=2)
    assert not any(one.dropped for one in done.rounds)
    trained = done.task.trained
    begun = tree.select(done.rounds[0].message.shared, trained)
    assert same(tree.select(done.server.params, trained), begun)


def test_personal_layers_have_no_correction_and_are_held_near_the_client_s_own_start():
    done = roll(FedSpeed, steps=3, number=2, rho=0.0, penalty=PENALTY, personal=Named("head.*"))
    for client, kept in done.federation.clients().items():
        y = START
        for _ in range(2):
            start = y
            for _ in range(3):
                y = y - LR * (slope(y, client) + PENALTY * (y - start))
        assert near(kept.params[W], y)
        assert not kept.memory


@pytest.mark.parametrize("settings", [{"penalty": -1}, {"rho": -0.1}, {"alpha": 1.5}, {"corrections": "mine"}])
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(InputError, match=f"{next(iter(settings))} = "):
        FedSpeed(**settings)
