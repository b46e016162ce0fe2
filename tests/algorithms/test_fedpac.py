"""FedPAC: features drawn to everybody's class means, and the best mixture of heads for each client."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import ALL, CLASSES, SOME, Cohorts, Wrapped, close, conv, mlp, ragged, run, same, work
from scipy import optimize
from torch.nn import functional

from fedlag.algorithm import Training
from fedlag.algorithms.fedpac import FedPAC
from fedlag.algorithms.fedrep import FedRep
from fedlag.errors import InputError
from fedlag.optim import SGD
from fedlag.personal import Named
from fedlag.run import evaluate
from fedlag.tree import select

SOURCE = ragged()
TRAINING = Training(epochs=2, batch=8, optimizer=SGD(lr=0.1))
nets = pytest.mark.parametrize("net", [mlp, conv])


def mixtures(moments, variance):
    """As FedPAC's, for moments (participants, size)."""
    return FedPAC().mixtures(torch.as_tensor(moments).unsqueeze(1), torch.as_tensor(variance))


def by_definition(moments, variance, one):
    """P of participant `one`, entry by entry: sum_k <h_ik - h_jk, h_ik - h_lk> + [j = l] V_j."""
    h, count = np.asarray(moments), len(moments)
    return np.array(
        [
            [(h[one] - h[j]).ravel() @ (h[one] - h[k]).ravel() + (j == k) * variance[j] for k in range(count)]
            for j in range(count)
        ]
    )


def scipy_mixture(moments, variance, one):
    """By a general solver; with the smallest shares dropped."""
    matrix = by_definition(moments, variance, one)
    matrix = matrix / matrix.trace()
    found = optimize.minimize(
        lambda a: a @ matrix @ a,
        np.full(len(matrix), 1 / len(matrix)),
        jac=lambda a: 2 * matrix @ a,
        bounds=[(0, 1)] * len(matrix),
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    kept = np.where(found.x < 1e-3, 0, found.x)
    return kept / kept.sum()


# The mixtures


def test_with_equal_moments_shares_are_inverse_to_variances():
    found = mixtures(torch.ones(3, 4), [1.0, 2.0, 2.0])
    assert torch.allclose(found, torch.tensor([[0.5, 0.25, 0.25]] * 3).double(), atol=1e-8)


def test_two_clients_at_a_distance():
    """a_1 = ((V_2 + D) / (V_1 + V_2 + D), V_1 / (V_1 + V_2 + D)) with V = (1, 2) and D = 3; and a_2 likewise."""
    found = mixtures([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]], [1.0, 2.0])
    assert torch.allclose(found, torch.tensor([[5 / 6, 1 / 6], [2 / 6, 4 / 6]]).double(), atol=1e-8)


def test_without_variance_everybody_keeps_its_own_head():
    found = mixtures(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)), torch.zeros(5))
    assert torch.allclose(found, torch.eye(5).double(), atol=1e-8)


@settings(deadline=None, max_examples=30)
@given(clients=st.integers(2, 7), seed=st.integers(0, 10**6), spread=st.floats(0.01, 10))
def test_mixtures_are_those_of_the_paper_s_quadratic_programme(clients, seed, spread):
    generator = np.random.default_rng(seed)
    moments, variance = generator.normal(size=(clients, 6)), generator.uniform(0.01, spread + 0.01, clients)
    found = mixtures(moments, variance).numpy()
    assert (found >= 0).all()
    assert np.allclose(found.sum(1), 1)
    assert ((found == 0) | (found >= 1e-3)).all()
    for one in range(clients):
        expected, matrix = scipy_mixture(moments, variance, one), by_definition(moments, variance, one)
        assert found[one] @ matrix @ found[one] <= expected @ matrix @ expected * (1 + 2e-3)
        near = np.abs(expected - 1e-3).min() < 1e-4 or ((expected > 0) != (found[one] > 0)).any()
        assert near or np.allclose(found[one], expected, atol=1e-4)


@settings(deadline=None, max_examples=30)
@given(clients=st.integers(2, 8), seed=st.integers(0, 10**6))
def test_renumbering_clients_renumbers_their_mixtures(clients, seed):
    generator = torch.Generator().manual_seed(seed)
    moments, variance = torch.randn(clients, 5, generator=generator), torch.rand(clients, generator=generator) + 0.1
    order = torch.randperm(clients, generator=generator)
    assert torch.allclose(mixtures(moments[order], variance[order]), mixtures(moments, variance)[order][:, order])


def test_shares_below_a_thousandth_are_dropped_and_the_others_sum_to_one():
    found = mixtures([[0.0], [0.0], [0.0]], [1.0, 1.0, 5000.0])
    assert torch.allclose(found, torch.tensor([[0.5, 0.5, 0.0]] * 3).double(), atol=1e-8)


def test_one_participant_keeps_its_own_head():
    assert mixtures([[1.0, 2.0]], [0.5]).tolist() == [[1.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_where_no_mixture_can_be_found_everybody_keeps_its_own_head(bad):
    assert torch.equal(mixtures([[1.0], [2.0]], [bad, 1.0]), torch.eye(2).double())
    assert torch.equal(mixtures([[1.0], [bad]], [1.0, 1.0]), torch.eye(2).double())


def test_a_variance_that_rounding_made_negative_counts_as_none():
    moments = [[0.0], [1.0], [3.0]]
    assert torch.allclose(mixtures(moments, [-0.1, 1.0, 1.0]), mixtures(moments, [0.0, 1.0, 1.0]))


def test_only_differences_between_moments_count_however_far_from_zero_they_are():
    moments = torch.tensor([[0.0, 1.0], [0.5, 0.5], [2.0, 0.0]], dtype=torch.float64)
    variance = [0.3, 0.5, 0.2]
    assert torch.allclose(mixtures(moments + 1e8, variance), mixtures(moments, variance), atol=1e-6)


# Rounds


@dataclass(frozen=True, kw_only=True)
class Alone(FedPAC):
    """Everybody keeps its own head."""

    def mixtures(self, moments, variance):
        return torch.eye(len(moments), dtype=torch.float64)


@nets
def test_without_alignment_and_mixtures_it_is_fedrep(net):
    """With one epoch of the head. So its measurements disturb no shuffle, no dropout and no statistics."""
    pac = run(Alone(alignment=0.0), net=net, training=TRAINING, number=4)
    rep = run(FedRep(head_epochs=1), net=net, training=TRAINING, number=4)
    body = {name for name in rep.server.params if name.startswith("body.")}
    assert same(select(pac.server.params, body), select(rep.server.params, body))
    for client, kept in rep.federation.clients().items():
        head = {name: value for name, value in kept.params.items() if name.startswith("head.")}
        assert close(pac.server.memory["heads"][client], head, 0)
    assert same(evaluate(pac.task, pac.server, pac.federation), evaluate(rep.task, rep.server, rep.federation))


def measured(net, client):
    """Class means, counts, moments and variance, example by example."""
    net = copy.deepcopy(net).eval()
    with torch.no_grad():
        z = [
            (net.body(x.unsqueeze(0))[0].double().numpy(), int(y))
            for x, y in zip(*SOURCE(client, "train"), strict=True)
        ]
    total, width = len(z), len(z[0][0])
    means, counts, moments, variance = np.zeros((CLASSES, width)), np.zeros(CLASSES), np.zeros((CLASSES, width)), 0.0
    for k in range(CLASSES):
        members = np.array([value for value, y in z if y == k])
        if len(members):
            share = len(members) / total
            means[k], counts[k] = members.mean(0), len(members)
            moments[k] = share * means[k]
            variance += share * (members**2).sum(1).mean() - share**2 * (means[k] ** 2).sum()
    return means, counts, moments, variance / total


def train(net, round, client, targets):
    """One epoch of the head, two of the body, as a PyTorch user would write it."""
    net = copy.deepcopy(net)
    stream = work(SOURCE, round, client).stream("train")
    for epochs, moving in ((1, net.head), (2, net.body)):
        net.eval()
        optimizer = torch.optim.SGD(moving.parameters(), 0.1)
        for x, y in stream.batches(8, epochs):
            moving.train(len(y) > 1)
            z = net.body(x)
            loss = functional.cross_entropy(net.head(z), y)
            if targets is not None:
                loss = loss + 0.7 * ((z - targets[y]) ** 2).mean()
            net.zero_grad()
            loss.backward()
            optimizer.step()
    return net


@nets
def test_rounds_written_out_by_hand(net):
    cohorts = [[0, 1, 2], [1, 4], [0, 1, 3], [2, 3]]
    done = run(FedPAC(alignment=0.7), net=net, training=TRAINING, sampling=Cohorts(cohorts), number=4)
    glob, heads, centroids = net(), {}, {}
    for round, cohort in enumerate(cohorts):
        trained, told = {}, []
        for client in cohort:
            mine = copy.deepcopy(glob)
            mine.head.load_state_dict(heads.get(client, glob.head).state_dict())
            own, _, moments, variance = measured(mine, client)
            targets = None
            if round:
                targets = torch.tensor(np.array([centroids.get(k, own[k]) for k in range(CLASSES)])).float()
            trained[client] = train(mine, round, client, targets)
            told.append((moments, variance, *measured(trained[client], client)[:2]))
        moments, variances, means, counts = (np.array(part) for part in zip(*told, strict=True))
        for k in range(CLASSES):
            if counts[:, k].sum():
                centroids[k] = counts[:, k] @ means[:, k] / counts[:, k].sum()
        for i, client in enumerate(cohort):
            shares = scipy_mixture(moments, variances, i)
            head = copy.deepcopy(glob.head)
            states = [trained[other].head.state_dict() for other in cohort]
            head.load_state_dict({n: sum(s * one[n] for s, one in zip(shares, states, strict=True)) for n in states[0]})
            heads[client] = head
        sizes = np.array([len(SOURCE(client, "train").y) for client in cohort])
        bodies = [trained[client].body.state_dict() for client in cohort]
        names = [n for n, value in bodies[0].items() if value.is_floating_point()]  # and no counter
        mean = {n: sum(w * one[n] for w, one in zip(sizes / sizes.sum(), bodies, strict=True)) for n in names}
        glob.body.load_state_dict(mean, strict=False)

        server = done.rounds[round].server
        expected = {f"body.{n}": value for n, value in mean.items()}
        assert close(select(server.params, expected), expected, 1e-5)
        assert server.memory["heads"].keys() == heads.keys()
        for client, head in heads.items():
            assert close(server.memory["heads"][client], {f"head.{n}": v for n, v in head.state_dict().items()}, 1e-4)
        for k, value in centroids.items():
            assert server.memory["known"][k]
            assert np.allclose(server.memory["centroids"][k].numpy(), value, atol=1e-5)

    for client, scores in evaluate(done.task, done.server, done.federation).items():
        final = copy.deepcopy(glob).eval()
        final.head.load_state_dict(heads.get(client, glob.head).state_dict())
        x, y = SOURCE(client, "test")
        assert scores["test"].loss == pytest.approx(functional.cross_entropy(final(x), y).item(), abs=1e-4)


def test_class_means_of_all_weigh_clients_by_their_examples_of_the_class():
    done = run(FedPAC(), net=mlp, sampling=ALL, number=1, wrap=Wrapped)
    (_, _, replies), memory = done.federation.heard[0], done.server.memory
    told = [reply.extra for reply in replies.values()]
    for k in range(CLASSES):
        sums = sum(one["counts"][k] * one["means"][k] for one in told)
        assert torch.allclose(memory["centroids"][k], sums / sum(one["counts"][k] for one in told), atol=1e-6)


def test_a_class_nobody_brings_keeps_its_mean_and_an_unknown_one_has_none():
    """Client 4 knows class 0 only."""
    first = run(FedPAC(), net=mlp, sampling=Cohorts([[4]]), number=1).server.memory
    assert first["known"].tolist() == [True, False, False]
    later = run(FedPAC(), net=mlp, sampling=Cohorts([[0, 1], [4]]), number=2)
    before, after = (one.server.memory for one in later.rounds)
    assert after["known"].all()
    assert torch.equal(before["centroids"][1:], after["centroids"][1:])
    assert not torch.equal(before["centroids"][0], after["centroids"][0])


def test_only_participants_get_new_heads():
    done = run(FedPAC(), net=mlp, sampling=Cohorts([[0, 1, 2], [1, 2]]), number=2)
    before, after = (one.server.memory["heads"] for one in done.rounds)
    assert before.keys() == after.keys() == {0, 1, 2}
    assert same(before[0], after[0])
    assert not same(before[1], after[1])


def test_heads_are_sent_to_their_owner_and_never_averaged():
    done = run(FedPAC(), net=mlp, sampling=SOME, number=3, wrap=Wrapped)
    for (_, letters, replies), previous in zip(done.federation.heard[1:], done.rounds, strict=False):
        for client, letter in letters.items():
            assert same(letter.extra, previous.server.memory["heads"].get(client, {}))
        assert all(name.startswith("body.") for reply in replies.values() for name in reply.update)
    assert same(done.server.params["head.weight"], done.rounds[0].message.shared["head.weight"])


def test_alignment_changes_nothing_in_the_first_round_and_something_in_the_second():
    with_it, without = run(FedPAC(), net=mlp, number=2), run(FedPAC(alignment=0.0), net=mlp, number=2)
    assert same(with_it.rounds[0].server, without.rounds[0].server)
    assert not same(with_it.server.params, without.server.params)


def test_a_client_that_shares_no_layer_of_the_body_is_not_aligned():
    """Features of unrelated bodies cannot be compared."""
    with_it, without = (run(FedPAC(alignment=a, personal=Named("body.*")), net=mlp) for a in (1.0, 0.0))
    assert same(with_it.federation.clients(), without.federation.clients())


def test_heads_kept_at_home_are_neither_told_nor_mixed():
    done = run(FedPAC(personal=Named("head.*")), net=mlp, wrap=Wrapped)
    for _, letters, replies in done.federation.heard:
        assert not any(letter.extra for letter in letters.values())
        assert all(reply.extra["heads"] == {} for reply in replies.values())


def test_a_head_of_one_linear_layer_is_asked_for():
    with pytest.raises(InputError, match="one linear layer"):
        run(FedPAC(), net=lambda: _without_head(mlp()))


def _without_head(net):
    net.head = torch.nn.Sequential(net.head)
    return net


@pytest.mark.parametrize(("setting", "value"), [("alignment", -1.0), ("head_epochs", -1), ("head_epochs", 1.5)])
def test_settings_are_checked(setting, value):
    with pytest.raises(InputError, match=setting):
        FedPAC(**{setting: value})
