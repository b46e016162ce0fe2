"""The loop: who takes part, what is yielded, and that it goes on from where the server stands."""

from dataclasses import dataclass
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import ALL, SEED, SOME, Cohorts, Wrapped, mlp, ragged, run, same, start

from fedlag.algorithms import FedAvg
from fedlag.errors import InputError
from fedlag.lag import LAG
from fedlag.run import Sampling, evaluate, rounds

law = settings(deadline=None)  # a busy machine is no counterexample

fractions = st.floats(0, 1, exclude_min=True)
seeds = st.integers(0, 2**31)


@law
@given(fraction=fractions, clients=st.integers(1, 200), seed=seeds, round=st.integers(0, 1000))
def test_a_cohort_is_sorted_without_doubles_and_of_the_size_asked_for(fraction, clients, seed, round):
    cohort = Sampling(fraction=fraction).cohort(clients, seed, round)
    assert list(cohort) == sorted(set(cohort))
    assert set(cohort) <= set(range(clients))
    assert len(cohort) == max(1, int(fraction * clients + 0.5))
    assert cohort == Sampling(fraction=fraction).cohort(clients, seed, round)


@pytest.mark.parametrize(
    ("fraction", "clients", "size"), [(0.1, 5, 1), (0.5, 5, 3), (0.3, 5, 2), (0.001, 9, 1), (1, 7, 7)]
)
def test_halves_are_rounded_up_and_nobody_is_too_few(fraction, clients, size):
    assert len(Sampling(fraction=fraction).cohort(clients, 0, 0)) == size


def test_cohorts_differ_from_round_to_round_and_from_seed_to_seed_and_reach_everybody():
    cohorts = {seed: [Sampling(fraction=0.2).cohort(20, seed, round) for round in range(60)] for seed in (0, 1)}
    assert len(set(cohorts[0])) > 50
    assert cohorts[0] != cohorts[1]
    counts = [sum(client in cohort for cohort in cohorts[0]) for client in range(20)]
    assert min(counts) > 0
    assert max(counts) < 40


@pytest.mark.parametrize("fraction", [0, -0.1, 1.0001, float("nan"), True, "half", None])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(InputError, match=r"sampling.fraction = .* above 0 and at most 1"):
        Sampling(fraction=fraction)


def test_rounds_are_numbered_and_the_participants_are_the_sampled_ones():
    done = run(FedAvg(), net=mlp)
    assert [one.number for one in done.rounds] == [one.message.round for one in done.rounds] == [0, 1, 2]
    assert [one.server.round for one in done.rounds] == [1, 2, 3]
    for one in done.rounds:
        cohort = SOME.cohort(5, SEED, one.number)
        assert tuple(one.letters) == tuple(one.trained) == cohort
        assert {client for client, last in one.server.met.items() if last == one.number} == set(cohort)


def test_the_loop_goes_on_from_where_the_server_stands():
    algorithm = FedAvg(personal=LAG(k=1, warmup=1))
    through = run(algorithm, number=5)
    task, server, federation = start(algorithm)
    for _ in range(5):
        (one,) = islice(rounds(task, server, federation, SOME, SEED), 1)
        server = one.server
    assert same(server, through.server)


def test_clients_are_met_only_when_they_are_sampled():
    done = run(FedAvg(), net=mlp, sampling=Cohorts([[1], [1], [3]]))
    assert done.federation.clients().keys() == {1, 3}
    evaluate(done.task, done.server, done.federation)
    assert done.federation.clients().keys() == {1, 3}


def test_parts_are_scored_when_they_are_asked_for():
    task, server, federation = start(FedAvg(), mlp)
    asked = [("test",), (), ("validation", "test")]
    done = list(islice(rounds(task, server, federation, SOME, SEED, scored=lambda round: asked[round]), 3))
    for one, parts in zip(done, asked, strict=True):
        assert all(tuple(scores) == parts for scores in one.trained.values())
        assert len(one.trained) == 3


@dataclass(frozen=True, kw_only=True)
class Opening(FedAvg):
    opens_with_all = True


def test_a_method_may_open_with_everybody():
    done = run(Opening(), net=mlp)
    assert [len(one.letters) for one in done.rounds] == [5, 3, 3]


def test_a_round_nobody_answers_takes_its_number_and_nothing_else():
    class Mute(Wrapped):
        def answer(self, round, client, reply):
            return iter(())

    task, before, _ = start(FedAvg(), mlp)
    done = run(FedAvg(), net=mlp, sampling=ALL, number=2, wrap=Mute)
    assert same(done.server, before._replace(round=2))
    for one in done.rounds:
        assert one.step is None
        assert one.trained == {}
        assert not one.sent
        assert one.dropped == dict.fromkeys(range(task.clients), "it did not answer")


def test_a_client_s_randomness_does_not_depend_on_who_else_takes_part():
    few, all_of_them = (
        run(FedAvg(), source=ragged(), sampling=Cohorts([cohort]), number=1, wrap=Wrapped) for cohort in ([2], range(5))
    )
    assert same(few.federation.heard[0][2][2], all_of_them.federation.heard[0][2][2])
