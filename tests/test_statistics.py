"""Class statistics against loops, and minima on the simplex against a general solver and by trying every support."""

import time
from itertools import chain, combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import conv
from scipy import optimize

from fedlag import statistics
from fedlag.net import Model
from fedlag.statistics import class_counts, class_means, class_sums, features, simplex_minima

law = settings(deadline=None, max_examples=60)

Y = torch.tensor([2, 0, 2, 2, 0])
VALUES = torch.arange(15.0).reshape(5, 3)


def test_counts_sums_and_means_of_classes_are_those_of_a_loop():
    assert class_counts(Y, 4).tolist() == [2, 0, 3, 0]
    for k in range(4):
        members = [value for value, y in zip(VALUES.numpy(), Y, strict=True) if y == k]
        assert np.array_equal(class_sums(VALUES, Y, 4)[k], np.sum(members, axis=0) if members else np.zeros(3))
        assert np.allclose(class_means(VALUES, Y, 4)[k], np.mean(members, axis=0) if members else np.zeros(3))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_of_any_shape_and_precision_have_class_means(shape, dtype):
    values = torch.ones(5, *shape, dtype=dtype)
    means = class_means(values, Y, 3)
    assert means.shape == (3, *shape)
    assert means.dtype == dtype
    assert torch.equal(means[0], torch.ones(shape, dtype=dtype))
    assert torch.equal(means[1], torch.zeros(shape, dtype=dtype))


def test_features_are_those_of_evaluation_mode_however_many_go_at_once(monkeypatch):
    model = Model(conv(dropout=0.5))
    params, x = model.init(), torch.randn(7, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    model.train(params)
    modes = [module.training for module in model.net.modules()]
    whole = features(model, params, x)
    monkeypatch.setattr(statistics, "BATCH", 3)
    assert torch.allclose(features(model, params, x), whole, atol=1e-6)
    assert [module.training for module in model.net.modules()] == modes
    assert not whole.requires_grad
    model.eval()
    with torch.no_grad():
        assert torch.equal(whole, model.features(params, x))


# The simplex


def value(quadratic, c, x):
    return x @ quadratic @ x - 2 * c @ x


def problem(size, rank, problems, seed):
    """A random positive semidefinite matrix of that rank, and linear terms."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    return root @ root.T, torch.randn(problems, size, generator=generator, dtype=torch.float64)


problems = given(size=st.integers(1, 6), rank=st.integers(1, 7), seed=st.integers(0, 10**6))


def best_support(quadratic, c):
    """The least value over all faces of the simplex whose own minimum lies inside."""
    size, least = len(c), np.inf
    for free in chain.from_iterable(combinations(range(size), n) for n in range(1, size + 1)):
        rows = list(free)
        system = np.zeros((len(rows) + 1, len(rows) + 1))
        system[:-1, :-1], system[-1, :-1], system[:-1, -1] = quadratic[np.ix_(rows, rows)], 1, 1
        inside = np.linalg.lstsq(system, np.append(c[rows], 1.0), rcond=None)[0][:-1]
        if inside.min() > -1e-9:
            x = np.zeros(size)
            x[rows] = inside.clip(0)
            least = min(least, value(quadratic, c, x / x.sum()))
    return least


@law
@problems
def test_a_minimum_is_on_the_simplex_and_no_face_has_a_lower_one(size, rank, seed):
    quadratic, linear = problem(size, rank, 3, seed)
    minima, residual = simplex_minima(quadratic, linear)
    assert (minima >= 0).all()
    assert torch.allclose(minima.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-9)
    assert (residual < 1e-8).all()
    for x, c in zip(minima.numpy(), linear.numpy(), strict=True):
        assert value(quadratic.numpy(), c, x) == pytest.approx(best_support(quadratic.numpy(), c), abs=1e-7)


@settings(deadline=None, max_examples=20)
@given(size=st.integers(2, 12), seed=st.integers(0, 10**6))
def test_scipy_finds_the_same_minimum(size, seed):
    quadratic, linear = problem(size, size + 2, 2, seed)
    minima, _ = simplex_minima(quadratic, linear)
    q = quadratic.numpy()
    for x, c in zip(minima.numpy(), linear.numpy(), strict=True):
        found = optimize.minimize(
            lambda a, c=c: value(q, c, a),
            np.full(size, 1 / size),
            jac=lambda a, c=c: 2 * (q @ a - c),
            bounds=[(0, 1)] * size,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        assert value(q, c, x) <= found.fun + 1e-9
        assert np.allclose(x, found.x, atol=1e-4)


@law
@problems
def test_at_a_minimum_gradients_are_level_where_it_is_positive_and_not_lower_elsewhere(size, rank, seed):
    quadratic, linear = problem(size, rank, 1, seed)
    x, _ = simplex_minima(quadratic, linear)
    gradient = (x @ quadratic - linear)[0]
    level = (x[0] * gradient).sum()
    unit = quadratic.diagonal().mean()
    assert ((gradient - level)[x[0] > 0].abs() / unit < 1e-8).all()
    assert ((gradient - level) / unit > -1e-8).all()


@law
@problems
def test_problems_are_solved_one_by_one_as_all_together(size, rank, seed):
    quadratic, linear = problem(size, rank + size, 4, seed)
    together, _ = simplex_minima(quadratic, linear)
    for x, c in zip(together, linear, strict=True):
        alone, _ = simplex_minima(quadratic, c.unsqueeze(0))
        assert torch.allclose(alone[0], x, atol=1e-9)


def test_few_problems_at_once_give_the_same(monkeypatch):
    quadratic, linear = problem(8, 10, 9, 0)
    before, _ = simplex_minima(quadratic, linear)
    monkeypatch.setattr(statistics, "ENTRIES", 64 * 2)
    assert torch.allclose(simplex_minima(quadratic, linear)[0], before, atol=1e-12)


@law
@given(seed=st.integers(0, 10**6), exponent=st.integers(-12, 12))
def test_units_do_not_matter(seed, exponent):
    quadratic, linear = problem(5, 7, 2, seed)
    before, _ = simplex_minima(quadratic, linear)
    after, residual = simplex_minima(quadratic * 10.0**exponent, linear * 10.0**exponent)
    assert torch.allclose(before, after, atol=1e-9)
    assert (residual < 1e-8).all()


def test_where_nothing_tells_entries_apart_they_are_equal():
    x, residual = simplex_minima(torch.zeros(4, 4), torch.zeros(2, 4))
    assert torch.allclose(x, torch.full((2, 4), 0.25, dtype=torch.float64))
    assert (residual < 1e-8).all()
    twins = torch.ones(3, 3)
    assert torch.allclose(simplex_minima(twins, torch.ones(1, 3))[0], torch.full((1, 3), 1 / 3, dtype=torch.float64))


def test_without_a_quadratic_term_the_largest_linear_one_wins():
    x, _ = simplex_minima(torch.zeros(3, 3), torch.tensor([[1.0, 3.0, 2.0], [-1.0, -3.0, -2.0]]))
    assert torch.equal(x, torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]).double())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_residual_of_what_is_not_finite_is_below_nothing(bad):
    quadratic, linear = problem(4, 5, 2, 0)
    spoilt = quadratic.clone()
    spoilt[1, 1] = bad
    _, residual = simplex_minima(spoilt, linear)
    assert not (residual <= 1.0).any()


def test_a_hundred_clients_take_well_under_a_second():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(100, 640, generator=generator, dtype=torch.float64) * torch.rand(100, 1, generator=generator)
    gram = points @ points.T
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    before = time.process_time()
    _, residual = simplex_minima(gram + torch.diag(torch.rand(100, generator=generator).double() * 50), gram)
    taken = time.process_time() - before
    torch.set_num_threads(threads)
    assert (residual < 1e-8).all()
    assert taken < 1, f"{taken:.2f} seconds of one core"
