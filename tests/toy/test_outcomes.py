"""What the toy shows, for three draws of the points. The bounds held in each of 100 draws."""

from dataclasses import replace
from functools import cache
from itertools import islice

import pytest
import torch
from torch import nn

from fedlag.aggregate import Mean
from fedlag.algorithms.fedavg import FedAvg
from fedlag.federation.sequential import Sequential
from fedlag.lag import LAG
from fedlag.net import Model, Net
from fedlag.round import begin
from fedlag.run import Sampling, evaluate, rounds
from fedlag.toy.data import DOMAINS, everybody, iid, non_iid
from fedlag.toy.experiment import EVERYTHING, ONE_SCALAR
from fedlag.toy.training import ASIDE, ORIGIN, SETTLING, TRAINING, Line, train

SAME_SIDE = ([0, 2], [1, 3])
ACROSS = ([0, 0, 1, 1], [2, 3, 2, 3])

every_seed = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
every_start = pytest.mark.parametrize("start", [ORIGIN, ASIDE])


@cache
def apart(seed, start=ORIGIN):
    return train(non_iid(seed), start=start, rounds=200 if start == ORIGIN else 30)


@cache
def dealt(seed):
    return train(iid(seed))


@cache
def personal(seed):
    return train(non_iid(seed), ONE_SCALAR)


@cache
def best(seed):
    """The line that separates everybody's points best."""
    return train((everybody(non_iid(seed)),), EVERYTHING, rounds=1, training=SETTLING)


def cosines(run):
    """(rounds, users, users)"""
    return torch.stack([conflict.cosines for conflict in run.conflicts])


def counts(run):
    return [conflict.count for conflict in run.conflicts]


def spread(run):
    """How far apart users' updates are, (rounds,)."""
    return torch.tensor([conflict.improvement for conflict in run.conflicts]).sqrt()


def off(run, seed):
    """How far the shared line ends from the best one, in w1, w2 and b."""
    return (run.shared[-1] - best(seed).models[-1, 0]).tolist()


@every_seed
@every_start
def test_from_round_20_on_users_conflict_exactly_across_the_two_sides(seed, start):
    late = cosines(apart(seed, start))[20:]
    assert (late[:, *ACROSS] < 0).all()
    assert (late[:, *SAME_SIDE] > 0.8).all()
    assert counts(apart(seed, start))[20:] == [4] * len(late)


@every_seed
@every_start
def test_in_round_0_at_most_two_pairs_conflict_yet(seed, start):
    assert counts(apart(seed, start))[0] <= 2


@every_seed
def test_in_round_0_from_the_origin_only_the_inner_users_may_conflict(seed):
    first = cosines(apart(seed))[0]
    assert (first[*SAME_SIDE] > 0.9).all()
    assert first[1, 2] == first.min()
    assert counts(apart(seed))[0] == int(first[1, 2] < 0)


@every_seed
def test_a_single_step_from_the_origin_shows_all_four_conflicts_that_five_steps_hide(seed):
    once = train(non_iid(seed), rounds=1, training=replace(TRAINING, epochs=1))
    assert counts(once) == [4]


@every_seed
@every_start
def test_by_round_20_users_across_the_sides_are_at_obtuse_angles(seed, start):
    across = cosines(apart(seed, start))[20][*ACROSS]
    assert -0.82 < across.mean() < -0.5
    assert (across > -0.92).all()
    assert (across < -0.4).all()


@every_seed
def test_at_the_end_they_are_almost_opposite(seed):
    assert (cosines(apart(seed))[-1][*ACROSS] < -0.85).all()


@every_seed
def test_iid_users_agree_for_the_first_rounds(seed):
    assert (cosines(dealt(seed))[0] > 0.45).all()
    assert counts(dealt(seed))[:7] == [0] * 7


@every_seed
def test_iid_users_who_start_far_away_agree_even_better(seed):
    assert (cosines(train(iid(seed), start=ASIDE, rounds=1))[0] > 0.98).all()


@every_seed
def test_iid_users_conflict_too_near_the_optimum_but_over_shorter_steps(seed):
    assert 3 <= counts(dealt(seed))[-1] <= 5
    assert (spread(apart(seed)) > 1.4 * spread(dealt(seed))).all()


@every_seed
def test_iid_users_end_at_the_best_line(seed):
    assert off(dealt(seed), seed) == pytest.approx([0, 0, 0], abs=0.025)


@every_seed
def test_users_in_domains_end_at_the_best_line_but_for_a_drift_in_b(seed):
    assert off(apart(seed), seed) == pytest.approx([0, -0.02, 0.10], abs=0.04)


@every_seed
def test_the_best_line_is_horizontal_and_right_for_85_percent(seed):
    w1, w2, b = best(seed).models[-1, 0].tolist()
    assert abs(w1) < 0.04
    assert 1.4 < w2 < 2.1
    assert abs(b) < 0.16
    for run in (best(seed), apart(seed), dealt(seed)):
        assert float(run.accuracy()[-1].mean()) == pytest.approx(0.85, abs=0.03)


@every_seed
def test_a_user_alone_finds_the_vertical_line_of_the_domain(seed):
    settled = train(non_iid(seed), EVERYTHING, rounds=1, training=SETTLING)
    assert (settled.accuracy()[-1] >= 0.98).all()
    for domain, (w1, w2, b) in zip(DOMAINS, settled.models[-1].tolist(), strict=True):
        assert -b / w1 == pytest.approx(domain.centre, abs=0.35)
        assert abs(w2 / w1) < 0.5
        assert w1 * domain.side > 0


@every_seed
def test_with_scalar_layers_w1_alone_is_in_conflict_at_first_and_becomes_personal(seed):
    first = {scalar: conflict.count for scalar, conflict in apart(seed).scalar_conflicts[0].items()}
    assert first == {"w1": 4, "w2": 0, "b": 0}
    assert set(personal(seed).personal) == {frozenset({"head.w1"})}


@every_seed
def test_on_iid_data_scalar_layers_conflict_over_nothing_but_noise(seed):
    first = {scalar: conflict.count for scalar, conflict in dealt(seed).scalar_conflicts[0].items()}
    assert first["w1"] >= 3
    assert first["w2"] == 0
    assert first["b"] >= 3


@every_seed
def test_a_personal_w1_gains_five_points(seed):
    shared, own = apart(seed), personal(seed)
    assert float(own.accuracy()[-1].mean()) == pytest.approx(0.905, abs=0.02)
    assert float(own.accuracy()[-1].mean() - shared.accuracy()[-1].mean()) == pytest.approx(0.053, abs=0.02)
    assert float(shared.loss()[-1].mean()) == pytest.approx(0.44, abs=0.05)
    assert float(own.loss()[-1].mean()) == pytest.approx(0.27, abs=0.02)


@every_seed
def test_personal_values_of_w1_point_to_the_side_of_the_user(seed):
    models = personal(seed).models[-1]
    assert models[:, 0].sign().tolist() == [domain.side for domain in DOMAINS]
    assert torch.equal(models[:, 1:], models[:1, 1:].expand(4, -1))


def test_training_alone_for_as_long_gains_as_much():
    alone = train(non_iid(0), EVERYTHING, rounds=1, training=replace(TRAINING, epochs=5 * 200))
    assert float(alone.loss()[-1].mean()) == pytest.approx(float(personal(0).loss()[-1].mean()), abs=0.005)
    assert float(alone.accuracy()[-1].mean()) == pytest.approx(float(personal(0).accuracy()[-1].mean()), abs=0.015)


def test_users_with_the_same_points_never_conflict_and_fedlag_is_fedavg():
    users = (everybody(non_iid(0)),) * 4
    shared = train(users, rounds=60)
    assert counts(shared) == [0] * 60
    for k in (1, 3):
        own = train(users, LAG(k=k, warmup=0, unit="tensor"), rounds=60 if k == 3 else 5)
        assert torch.equal(own.shared, shared.shared[: len(own.shared)])
        assert torch.equal(own.models, shared.models[: len(own.models)])


def test_scores_are_those_of_the_engine():
    users = non_iid(0)
    seen = train(users, ONE_SCALAR, rounds=4)
    algorithm = FedAvg(personal=ONE_SCALAR, aggregator=Mean(weighting="uniform"))
    task, server = begin(algorithm, Model(Net(nn.Identity(), Line(ORIGIN))), TRAINING, clients=4, seed=0)
    federation = Sequential(task, lambda client, part: users[client], seed=0)
    *_, last = islice(rounds(task, server, federation, Sampling(), seed=0), 4)
    scores = evaluate(task, last.server, federation)
    for user in range(4):
        assert scores[user]["test"].accuracy == pytest.approx(float(seen.accuracy()[-1, user]))
        assert scores[user]["test"].loss == pytest.approx(float(seen.loss()[-1, user]))
