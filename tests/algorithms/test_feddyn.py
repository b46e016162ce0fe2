"""FedDyn: loss - <dual, w> + alpha/2 |w - start|^2."""

import pytest
import torch
from laws.federations import ALL, SOME, Cohorts, Wrapped, close, mlp, noisy, run, same, with_lag

from algorithms.bowls import COHORTS, JOINT, LR, START, W, near, roll, slope
from algorithms.memories import COMES_AND_GOES, left, moments
from fedlag.algorithms import FedDyn, FedProx
from fedlag.errors import InputError
from fedlag.personal import Named
from fedlag.run import evaluate
from fedlag.tree import mean, select

ALPHA = 0.2


def updates(algorithm, net):
    """What every client of the first round moved."""
    _, _, replies = run(algorithm, net=net, number=1, sampling=ALL, wrap=Wrapped).federation.heard[0]
    return {client: reply.update for client, reply in replies.items()}


@pytest.mark.parametrize("net", [mlp, noisy])
def test_the_first_local_training_is_fedprox_with_mu_alpha_bit_for_bit(net):
    assert same(updates(FedDyn(alpha=0.3), net), updates(FedProx(mu=0.3), net))


def test_after_a_first_round_with_everyone_the_model_is_twice_the_mean_less_the_start():
    done = run(FedDyn(alpha=0.3), number=1, sampling=ALL, wrap=Wrapped)
    message, _, replies = done.federation.heard[0]
    trained = done.task.trained
    ends = {n: torch.stack([message.shared[n] + r.update[n] for r in replies.values()]).mean(0) for n in message.shared}
    expected = {name: 2 * ends[name] - message.shared[name] for name in trained}
    assert close(select(done.server.params, trained), expected)
    carried = done.task.carried
    assert carried
    assert close(select(done.server.params, carried), select(ends, carried)), "statistics are averaged plainly"


def test_it_is_the_printed_algorithm_with_partial_participation():
    w, h, dual = START, torch.zeros_like(START), [torch.zeros_like(START)] * 3
    for cohort in COHORTS:
        ends = []
        for client in cohort:
            y = w
            for _ in range(4):
                y = y - LR * (slope(y, client) - dual[client] + ALPHA * (y - w))
            dual[client] = dual[client] - ALPHA * (y - w)
            ends.append(y)
        h = h - ALPHA / 3 * sum(y - w for y in ends)
        w = sum(ends) / len(ends) - h / ALPHA
    done = roll(FedDyn, steps=4, number=len(COHORTS), sampling=Cohorts(COHORTS), alpha=ALPHA)
    assert near(done.server.params[W], w)
    assert near(-ALPHA * done.server.memory["lead"][W], h)
    for client, kept in done.federation.clients().items():
        assert near(kept.memory[W], dual[client])


def assert_lead_is_of_everybody_s_duals(seen, alpha):
    for one in seen:
        lead = one.server.memory["lead"]
        for name in one.shared:
            assert torch.allclose(-alpha * lead[name], one.remembered(name).mean(0), rtol=0, atol=1e-6)
    assert any(one.remembered(name).any() for one in seen for name in one.shared)


@pytest.mark.parametrize("sampling", [ALL, SOME, Cohorts([[0], [1, 2], [0]])], ids=["all", "some", "never all"])
def test_h_is_the_mean_of_the_duals_of_all_clients_whoever_takes_part(sampling):
    assert_lead_is_of_everybody_s_duals(list(moments(FedDyn(alpha=ALPHA), sampling=sampling)), ALPHA)


@pytest.mark.parametrize("sampling", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize(
    "algorithm",
    [FedDyn(alpha=ALPHA, personal=COMES_AND_GOES), with_lag(FedDyn(alpha=ALPHA), k=1)],
    ids=["scheduled", "lag"],
)
def test_it_stays_so_for_shared_layers_when_layers_become_personal_and_leave(algorithm, sampling):
    seen = list(moments(algorithm, sampling=sampling, number=12))
    assert left(seen), "some layer was personal and is shared again"
    assert_lead_is_of_everybody_s_duals(seen, ALPHA)


def test_duals_cover_trainable_parameters_only():
    *_, last = moments(FedDyn())
    assert last.task.carried
    assert last.server.memory["lead"].keys() == set(last.task.trained)
    assert all(client.memory.keys() == set(last.task.trained) for client in last.clients.values())


def test_personal_layers_have_no_dual_and_are_held_near_the_client_s_own_start():
    done = roll(FedDyn, steps=3, number=2, alpha=ALPHA, personal=Named("head.*"))
    for client, kept in done.federation.clients().items():
        y = START
        for _ in range(2):
            start = y
            for _ in range(3):
                y = y - LR * (slope(y, client) + ALPHA * (y - start))
        assert near(kept.params[W], y)
        assert not kept.memory


def test_clients_that_drift_apart_still_find_the_joint_optimum():
    done = roll(FedDyn, steps=20, number=60, alpha=1.0)
    assert near(done.server.params[W], torch.full_like(START, JOINT), 1e-3)


def test_the_mean_of_participants_may_be_evaluated_instead_and_training_goes_on_as_before():
    server, average = (run(FedDyn(evaluated=what), wrap=Wrapped) for what in ("server", "mean"))
    assert same(server.server, average.server)
    message, _, replies = average.federation.heard[-1]
    moved = {n: torch.stack([reply.update[n] for reply in replies.values()]) for n in message.shared}
    weights = torch.full((len(replies),), 1 / len(replies))
    expected = {name: message.shared[name] + value for name, value in mean(moved, weights).items()}
    deployed = average.task.algorithm.deployed(average.server)
    assert close(deployed, expected)
    assert same(server.task.algorithm.deployed(server.server), server.server.params)
    scores = [evaluate(done.task, done.server, done.federation) for done in (server, average)]
    assert not same(*scores)


@pytest.mark.parametrize("settings", [{"alpha": 0}, {"alpha": -1.0}, {"evaluated": "both"}])
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(InputError, match=f"{next(iter(settings))} = "):
        FedDyn(**settings)
