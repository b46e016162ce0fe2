"""Bowls: what is worked out on paper beside what the engine does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlag.lemma.convergence import bowls, descend, improvement_factor, theorem, window

PROBLEM = bowls(seed=3)


def test_the_optimum_is_where_the_clients_gradients_cancel():
    gradients = PROBLEM.curvature * (PROBLEM.optimum - PROBLEM.centre)
    assert torch.allclose(gradients.sum(0), torch.zeros(()).double(), atol=1e-12)
    assert pytest.approx(float((gradients**2).sum() / len(gradients))) == PROBLEM.noise


@pytest.mark.parametrize("steps", [2, 7])
@pytest.mark.parametrize("share", [0.2, 0.99])
def test_averaging_stays_below_the_bound(steps, share):
    found = descend(PROBLEM, "nothing", steps, share, rounds=40)
    assert 0 <= found.last < found.measured < found.bound


def test_rounds_are_those_worked_out_in_closed_form():
    """E steps shrink every coordinate's distance to a client's centre by (1 - eta a)^E."""
    steps, share = 3, 0.5
    rate = share / (6 * steps * PROBLEM.smoothness)
    shrink = (1 - rate * PROBLEM.curvature) ** steps
    w = torch.zeros_like(PROBLEM.optimum)
    for _ in range(6):
        w = (PROBLEM.centre + shrink * (w - PROBLEM.centre)).mean(0)
    above = float((PROBLEM.losses(w) - PROBLEM.losses(PROBLEM.optimum)).mean())
    assert descend(PROBLEM, "nothing", steps, share, rounds=6).last == pytest.approx(above, rel=1e-9)


def test_clients_that_keep_the_layer_they_disagree_on_end_below_every_shared_model():
    assert descend(PROBLEM, "LAG, frozen", 5, 0.99, rounds=100).last < -1


@pytest.mark.parametrize("seed", [0, 5])
def test_a_layer_whose_clients_stand_still_is_shared_again_and_what_it_gained_is_lost(seed):
    """Updates that vanish conflict no more, so that conflicts chosen anew every round give up what they won."""
    dynamic, frozen = (descend(bowls(seed), rule, 2, 0.99, rounds=150).last for rule in ("LAG, dynamic", "LAG, frozen"))
    assert dynamic > frozen + 1


def test_the_bound_s_terms_are_those_of_the_proof():
    distance, rate, steps, rounds = 7.0, 0.01, 4, 50
    smooth, noise = PROBLEM.smoothness, PROBLEM.noise
    first, second, third = 3 * 7.0 / (50 * 0.01 * 4), 9 * 0.01 * noise, 36 * 0.01**2 * 4 * 3 * smooth * noise
    assert theorem(PROBLEM, rate, steps, rounds, distance) == pytest.approx(first + second + third)


@given(steps=st.integers(2, 10_000), share=st.floats(1e-6, 1), smooth=st.floats(1e-3, 1e3))
def test_no_step_size_makes_the_improvement_term_positive(steps, share, smooth):
    """The theorem asks for 1/(sqrt(24 E (E-1)) L) < eta < 1/(6 E L); there is no such eta."""
    low, high = window(steps)
    assert low > high
    assert improvement_factor(share / (6 * steps * smooth), steps, smooth) < 0


@pytest.mark.parametrize("steps", [2, 5])
def test_the_factor_changes_sign_at_the_lower_end_of_the_window(steps):
    low, _ = window(steps)
    assert improvement_factor(0.999 * low, steps, 1.0) < 0 < improvement_factor(1.001 * low, steps, 1.0)
