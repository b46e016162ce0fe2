"""Laws of the tests, and how often they are right: on tables drawn from a model with known truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedlag.significance import (
    BEATS,
    LOSES,
    OPEN,
    contrast,
    corrected,
    detectable,
    holm,
    margin,
    p_across_clients,
    p_across_seeds,
    power,
)

law = settings(deadline=None, max_examples=50)
differences = st.lists(st.floats(-50, 50).map(lambda value: round(value, 3)), min_size=2, max_size=8)


@law
@given(differences)
def test_across_seeds_it_is_the_paired_t_test(values):
    if np.std(values) > 1e-6:
        assert p_across_seeds(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-6)


@law
@given(differences)
def test_the_other_way_round_it_is_as_unlikely(values):
    one, other = contrast(values, values), contrast(np.negative(values), np.negative(values))
    assert one.p == pytest.approx(other.p)
    assert (one.points, one.margin) == (-other.points, other.margin)
    assert {one.outcome, other.outcome} in ({OPEN}, {BEATS, LOSES})


def test_equal_models_and_single_seeds_show_nothing():
    assert contrast([0.0] * 5, [0.0] * 20).outcome == OPEN
    alone = contrast([30.0], [30.0] * 100)
    assert (alone.outcome, alone.margin, alone.detectable) == (OPEN, None, None)
    assert alone.across_clients < 1e-10


def test_a_difference_must_show_across_seeds_and_across_clients():
    steady, wild = [1.0, 1.1, 0.9, 1.0, 1.1], [6.0, -3.0, 5.0, -4.0, 2.0]
    most, few = [1.0] * 18 + [-1.0] * 2, [20.0] + [-0.1] * 19
    assert contrast(steady, most).outcome == BEATS
    assert contrast(wild, most).outcome == OPEN
    assert contrast(steady, few).outcome == OPEN


def test_equal_clients_say_nothing():
    assert p_across_clients([1.0, 2.0, 3.0, -1.0, 0.0, 0.0], 1.0) == p_across_clients([1.0, 2.0, 3.0, -1.0], 1.0)
    assert contrast([0.1 + 0.2 - 0.3] * 5, [0.1 + 0.2 - 0.3] * 30).p == 1.0


def test_across_clients_it_is_the_signed_rank_test_where_mean_and_clients_agree():
    values = np.random.default_rng(0).normal(1, 3, 30)
    assert p_across_clients(values, 1.0) == pytest.approx(stats.wilcoxon(values).pvalue, rel=1e-6)
    assert p_across_clients(values, -1.0) == 1.0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([0.6, 0.9]) == pytest.approx([1.0, 1.0])
    assert len(holm([])) == 0


@law
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_raises_keeps_order_and_is_between_nothing_and_bonferroni(p):
    raised = holm(p)
    assert (raised >= np.asarray(p)).all()
    assert (raised <= np.minimum(np.asarray(p) * len(p), 1) + 1e-12).all()
    assert (np.diff(raised[np.argsort(p, kind="stable")]) >= 0).all()


def test_the_interval_is_the_test_turned_round():
    """At the edge of the interval, the p-value is the level."""
    values = np.array([1.0, 2.5, 0.5, 3.0])
    edge = margin(values.std(ddof=1), 4)
    assert p_across_seeds(values - values.mean() + edge) == pytest.approx(0.05)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_a_detectable_difference_is_found_in_four_of_five_cases(seeds):
    points = detectable(1.5, seeds)
    assert power(points, 1.5, seeds) == pytest.approx(0.8)
    generator = np.random.default_rng(seeds)
    draws = generator.normal(points, 1.5, (4000, seeds))
    found = np.mean([p_across_seeds(draw) < 0.05 and draw.mean() > 0 for draw in draws])
    assert found == pytest.approx(0.8, abs=0.02)


# How often are they right? On accuracies as experiments give them: clients of their own levels and few test examples,
# which all methods share; runs that lift or lower all clients of a seed together; clients with which a run goes well.

BY_RUN, BY_CLIENT = 0.5, 2.0  # standard deviations in points
SHARED = 0.9  # of the test examples every run finds equally hard


class Federations:
    """One partition for each seed (or one for all), on which methods are trained again and again."""

    def __init__(self, seed, redraw=True, seeds=5, clients=20):
        self.generator, self.redraw, self.shape = np.random.default_rng(seed), redraw, (seeds, clients)
        drawn = (seeds if redraw else 1, clients)
        self.levels = np.broadcast_to(self.generator.beta(9, 2, drawn), self.shape)
        self.exist = np.arange(120) < self.generator.integers(8, 120, (*drawn, 1))
        self.hardness = self.generator.uniform(size=(*drawn, 120))

    def train(self, lift=0.0):
        """Accuracies (seeds, clients) in points of a method `lift` points better than the levels."""
        seeds, clients = self.shape
        run, own = self.generator.normal(0, BY_RUN, (seeds, 1)), self.generator.normal(0, BY_CLIENT, (seeds, clients))
        chance = self.levels + (lift + run + own) / 100
        shared = self.generator.uniform(size=(*self.shape, 120)) < SHARED
        hardness = np.where(shared, self.hardness, self.generator.uniform(size=(*self.shape, 120)))
        right = (hardness < chance[..., None]) & self.exist
        return 100 * right.sum(axis=2) / self.exist.sum(axis=2)

    def contrast(self, one, other):
        points = one - other
        return contrast(points.mean(axis=1), points.ravel() if self.redraw else points.mean(axis=0))


@pytest.mark.parametrize("redraw", [True, False])
@pytest.mark.parametrize("seeds", [3, 5])
def test_a_method_beats_itself_in_at_most_one_of_twenty_comparisons(redraw, seeds):
    """Two trainings of the same method, 200 times."""
    false = 0
    for number in range(200):
        federations = Federations([1, number], redraw, seeds)
        false += federations.contrast(federations.train(), federations.train()).outcome != OPEN
    assert false <= 10


def test_among_many_equal_methods_hardly_ever_one_stands_out():
    false = 0
    for number in range(200):
        federations = Federations([2, number])
        alone = federations.train()
        family = corrected({str(other): federations.contrast(federations.train(), alone) for other in range(4)})
        false += any(one.outcome != OPEN for one in family.values())
    assert false <= 10


def test_clients_alone_would_see_differences_that_are_not_there():
    """Why the seeds have to agree: all clients of a run rise and fall together."""
    false = 0
    for number in range(200):
        federations = Federations([1, number], seeds=1, clients=100)
        false += federations.contrast(federations.train(), federations.train()).across_clients < 0.05
    assert false > 20


def test_a_planted_gain_of_one_point_is_found_as_often_as_stated():
    """Ten seeds of a hundred clients."""
    spread = np.std(
        [(f.train() - f.train()).mean() for f in (Federations([3, n], seeds=1, clients=100) for n in range(300))]
    )
    stated = power(1.0, float(spread), seeds=10)
    found = wrong = 0
    for number in range(200):
        federations = Federations([4, number], seeds=10, clients=100)
        outcome = federations.contrast(federations.train(lift=1.0), federations.train()).outcome
        found, wrong = found + (outcome == BEATS), wrong + (outcome == LOSES)
    assert stated > 0.85
    assert abs(found / 200 - stated) < 0.06
    assert wrong == 0
