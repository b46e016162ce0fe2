"""FedCAC: critical entries come from clients with similar ones, all others from everybody."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import ALL, Cohorts, Wrapped, close, conv, mlp, noisy, replies, run, same

from fedlag import tree
from fedlag.aggregate import Mean
from fedlag.algorithms import FedAvg
from fedlag.algorithms.fedcac import FedCAC, most, overlaps
from fedlag.errors import InputError
from fedlag.personal import Named
from fedlag.run import evaluate


@dataclass(frozen=True, kw_only=True)
class Watched(FedCAC):
    """Notes down what everybody starts from and, at evaluation, would use."""

    starts: dict = field(default_factory=dict)  # (round, client) -> parameters
    used: dict = field(default_factory=dict)  # client -> parameters

    def prepare(self, local):
        self.starts[local.message.round, local.work.client] = self.receive(local)
        return {}

    def personalize(self, local):
        self.used[local.work.client] = super().personalize(local)
        return self.used[local.work.client]


@dataclass(frozen=True, kw_only=True)
class Hermits(Watched):
    """Nobody collaborates."""

    def collaborators(self, overlap, round):
        return torch.eye(len(overlap), dtype=torch.bool)


# Critical entries


def test_the_most_sensitive_half_is_critical():
    assert most(torch.tensor([[0.1, 0.4], [0.3, 0.2]]), 0.5).tolist() == [[False, True], [True, False]]


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30, unique=True),
    st.floats(0, 1),
)
@settings(deadline=None)
def test_as_many_are_critical_as_the_share_rounded_down_and_none_of_the_others_is_more_sensitive(values, share):
    sensitivity = torch.tensor(values, dtype=torch.float64)
    critical = most(sensitivity, share)
    assert critical.sum() == int(share * len(values))
    if critical.any() and not critical.all():
        assert sensitivity[critical].min() > sensitivity[~critical].max()


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_less_than_one_entry_is_none(share):
    assert not most(torch.tensor([1.0, 2.0, 3.0, 4.0]), share).any()


def test_entries_that_tie_with_the_last_critical_one_are_critical():
    assert most(torch.tensor([1.0, 2.0, 2.0, 3.0]), 0.5).tolist() == [False, True, True, True]


def test_entries_of_no_sensitivity_are_never_critical():
    assert not most(torch.zeros(4), 1.0).any()
    assert most(torch.tensor([0.0, 1e-3, 1e-12, 0.0, 1e-30]), 1.0).tolist() == [False, True, True, False, False]
    assert most(torch.tensor([0.0, 5e-11, 1e-3]), 2 / 3).tolist() == [False, True, True]


def test_sensitivity_is_how_far_an_entry_moved_times_where_it_ended():
    """From where training started, in every tensor by itself."""
    watched = Watched(critical=0.3, patience=2.0)
    done = run(watched, net=mlp, sampling=ALL, number=3, wrap=Wrapped)
    for message, _, answers in done.federation.heard:
        for client, reply in answers.items():
            for name, marked in reply.extra["critical"].items():
                end = message.shared[name] + reply.update[name]
                sensitivity = ((end - watched.starts[message.round, client][name]) * end).abs().flatten()
                count = int(0.3 * marked.numel())
                assert marked.dtype == torch.bool
                assert marked.sum() == count
                expected = sensitivity.topk(count).indices if count else []
                assert (marked.flatten().nonzero().flatten().tolist() == sorted(int(i) for i in expected)) or (
                    sensitivity[marked.flatten()].min() >= sensitivity[~marked.flatten()].max() - 1e-6
                )


# Overlaps


def overlapping(*masks):
    """Overlaps of masks that are spread over two tensors."""
    rows = torch.tensor([[bit == "1" for bit in mask] for mask in masks])
    spread = {"body.weight": rows[:, :2].unsqueeze(2), "head.weight": rows[:, 2:]}
    return overlaps(replies({"body.weight": torch.zeros(len(masks), 1)}, extra={"critical": spread}))


def test_two_masks_with_one_of_two_entries_in_common_overlap_by_half():
    assert torch.equal(overlapping("1100", "1010"), torch.tensor([[1.0, 0.5], [0.5, 1.0]]).double())


def test_the_overlap_is_relative_to_a_client_s_own_entries():
    """|m_i - m_j| is 2."""
    assert torch.allclose(overlapping("1000", "1110"), torch.tensor([[1.0, 0.0], [2 / 3, 1.0]]).double())


def test_a_client_without_critical_entries_overlaps_with_nobody():
    assert overlapping("0000", "1100")[0].tolist() == [0.0, 0.0]


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_overlaps_are_those_of_the_formula(seed):
    masks = np.random.default_rng(seed).random((5, 8)) < 0.5
    found = overlapping(*("".join("1" if bit else "0" for bit in mask) for mask in masks))
    for i, one in enumerate(masks):
        for j, other in enumerate(masks):
            expected = 1 - np.abs(one.astype(int) - other).sum() / (2 * one.sum()) if one.any() else 0.0
            assert found[i, j] == pytest.approx(expected)


# Collaborators


def test_near_the_last_round_of_patience_only_the_most_similar_pair_collaborates():
    overlap = overlapping("11110000", "11110000", "00001111", "00011110")
    pairs = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]).bool()
    closest = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]).bool()
    algorithm = FedCAC(patience=10.0)
    assert torch.equal(algorithm.collaborators(overlap, 1), pairs)
    assert torch.equal(algorithm.collaborators(overlap, 9), closest)
    assert torch.equal(algorithm.collaborators(overlap, 10), closest)
    assert torch.equal(algorithm.collaborators(overlap, 11), torch.eye(4).bool())


def test_the_threshold_goes_from_the_mean_overlap_to_the_highest():
    overlap = torch.tensor([[1.0, 0.2, 0.4], [0.6, 1.0, 0.8], [0.0, 0.4, 1.0]])  # mean 0.4, highest 0.8
    for round, least in ((1, 0.5), (2, 0.6), (4, 0.8)):
        expected = torch.eye(3).bool() | (overlap >= least - 1e-6)
        assert torch.equal(FedCAC(patience=4.0).collaborators(overlap, round), expected)


def test_where_all_overlaps_are_equal_everybody_collaborates_for_ever():
    overlap = torch.full((7, 7), 1 / 3, dtype=torch.float64)
    assert FedCAC(patience=1.0).collaborators(overlap, 1000).all()


def test_one_participant_is_its_own_collaborator():
    assert FedCAC().collaborators(torch.ones(1, 1), 1).tolist() == [[True]]


# Rounds


def test_without_critical_entries_it_is_fedavg():
    """On a network without running statistics, which are everybody's own here."""
    cac, avg = run(FedCAC(critical=0.0), net=mlp, number=4), run(FedAvg(), net=mlp, number=4)
    assert same(cac.server.params, avg.server.params)
    assert same(evaluate(cac.task, cac.server, cac.federation), evaluate(avg.task, avg.server, avg.federation))


def test_with_everything_critical_it_is_fedavg_with_uniform_weights():
    watched = Watched(critical=1.0, patience=2.0)
    done = run(watched, net=mlp, sampling=ALL, number=4)
    uniform = run(FedAvg(aggregator=Mean(weighting="uniform")), net=mlp, sampling=ALL, number=4)
    for one in uniform.rounds[1:]:
        for client in range(5):
            assert close(watched.starts[one.number, client], one.message.shared)
    evaluate(done.task, done.server, done.federation)
    assert all(close(used, uniform.server.params) for used in watched.used.values())


def test_with_everything_critical_and_no_collaborators_it_is_training_alone():
    hermits = Hermits(critical=1.0)
    done = run(hermits, net=mlp, sampling=ALL, number=4)  # a newcomer would start from the shared model
    local = run(FedAvg(personal=Named("*")), net=mlp, sampling=ALL, number=4)
    evaluate(done.task, done.server, done.federation)
    for client, kept in local.federation.clients().items():
        assert close(hermits.used[client], kept.params)


@pytest.mark.parametrize("net", [mlp, noisy])
def test_a_start_is_critical_entries_of_the_customised_and_all_others_of_the_shared_model(net):
    """Also for a client that was away: what it last marked and was made for it, and the shared model of now."""
    watched = Watched(critical=0.4, patience=2.0)
    cohorts = [[0, 1, 2, 3], [0, 4], [1, 2], [0, 1, 2, 3, 4]]
    done = run(watched, net=net, sampling=Cohorts(cohorts), number=4, wrap=Wrapped)
    marked, customised, left = {}, {}, {}
    for message, _, answers in done.federation.heard:
        for client in answers:
            start = watched.starts[message.round, client]
            assert start.keys() == message.shared.keys()
            for name, shared in message.shared.items():
                if name in done.task.carried:
                    expected = left.get(client, message.shared)[name]
                elif client in marked:
                    expected = torch.where(marked[client][name], customised[client][name], shared)
                else:
                    expected = shared
                assert torch.allclose(start[name], expected, atol=1e-6)
        trained = {client: tree.add(message.shared, reply.update) for client, reply in answers.items()}
        masks = {client: reply.extra["critical"] for client, reply in answers.items()}
        left |= trained
        marked |= masks
        for client in answers:
            near = [one for one in answers if one == client or near_enough(watched, masks, client, one, message.round)]
            customised[client] = {
                name: torch.stack([trained[one][name] for one in near]).mean(0) for name in masks[client]
            }


def near_enough(algorithm, masks, client, other, round):
    """R >= mean + t / beta (max - mean), written out."""
    rows = {one: np.concatenate([mask.flatten().numpy() for mask in masks[one].values()]).astype(int) for one in masks}

    def overlap(i, j):
        return 1 - np.abs(rows[i] - rows[j]).sum() / (2 * rows[i].sum())

    every = [overlap(i, j) for i in rows for j in rows if i != j]
    threshold = np.mean(every) + (round + 1) / algorithm.patience * (np.max(every) - np.mean(every))
    return overlap(client, other) >= threshold - 1e-9


def test_the_shared_model_is_the_weighted_mean_of_everything_trained():
    """Whatever is critical."""
    done = run(FedCAC(patience=2.0), net=mlp, sampling=ALL, number=3, wrap=Wrapped)
    for (message, _, answers), one in zip(done.federation.heard, done.rounds, strict=True):
        total = sum(reply.examples for reply in answers.values())
        for name, value in one.server.params.items():
            moved = sum(reply.update[name] * (reply.examples / total) for reply in answers.values())
            assert torch.allclose(value, message.shared[name] + moved, atol=1e-6)


def test_running_statistics_are_everybody_s_own():
    watched = Watched()
    done = run(watched, net=conv, number=3)
    evaluate(done.task, done.server, done.federation)
    for client, kept in done.federation.clients().items():
        for name in done.task.carried:
            assert torch.equal(watched.used[client][name], kept.params[name])
            assert not torch.equal(kept.params[name], done.server.params[name])


def test_a_personal_layer_is_the_client_s_own_critical_or_not():
    watched = Watched(personal=Named("head.*"), patience=2.0)
    done = run(watched, net=mlp, sampling=ALL, number=3, wrap=Wrapped)
    assert not any(
        "head.weight" in reply.extra["critical"] for _, _, heard in done.federation.heard for reply in heard.values()
    )
    evaluate(done.task, done.server, done.federation)
    for client, kept in done.federation.clients().items():
        assert torch.equal(watched.used[client]["head.weight"], kept.params["head.weight"])
        assert not torch.equal(watched.used[client]["body.1.weight"], done.server.params["body.1.weight"])


@pytest.mark.parametrize(("setting", "value"), [("critical", 1.1), ("critical", -0.1), ("patience", 0.0)])
def test_settings_are_checked(setting, value):
    with pytest.raises(InputError, match=setting):
        FedCAC(**{setting: value})
