"""What methods measure of a client's examples, and the quadratic programme that combines clients by it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedlag.net import Model
from fedlag.tree import Params

BATCH = 1000  # examples at once, where nothing is trained
ENTRIES = 4_000_000  # numbers in the matrices factorised at once
RIDGE = 1e-10
TOLERANCE = 1e-13


def features(net: Model, params: Params, x: Tensor) -> Tensor:
    """Features (examples, width) of all examples in evaluation mode, without gradients."""
    with net.evaluating(), torch.no_grad():
        return torch.cat([net.features(params, part) for part in torch.split(x, BATCH)])


def class_counts(y: Tensor, classes: int) -> Tensor:
    """Examples of every class: (classes,) int64."""
    return torch.bincount(y, minlength=classes)


def class_sums(values: Tensor, y: Tensor, classes: int) -> Tensor:
    """Sums over the examples of every class.

    values: (examples, *shape). Returns (classes, *shape), zero for a class without examples.
    """
    return values.new_zeros(classes, *values.shape[1:]).index_add(0, y, values)


def class_means(values: Tensor, y: Tensor, classes: int) -> Tensor:
    """As `class_sums`, divided by the counts: the prototypes, when the values are features."""
    counts = class_counts(y, classes).clamp_min(1).to(values.dtype)
    return class_sums(values, y, classes) / counts.reshape(-1, *[1] * (values.dim() - 1))


def simplex_minima(quadratic: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
    """Where x' Q x - 2 c' x is least over x >= 0, sum x = 1, for many c at once.

    quadratic: Q (size, size), symmetric and positive semidefinite. linear: one c in each row (problems, size).
    Returns x (problems, size) float64, and how far each is from the optimality conditions (problems,), in units of
    Q's mean diagonal.
    """
    quadratic, linear = quadratic.double(), linear.double()
    identity = torch.eye(len(quadratic), dtype=torch.float64, device=quadratic.device)
    unit = next(unit for unit in (quadratic.diagonal().mean(), linear.abs().max(), 1.0) if unit != 0)
    # Adding 1 everywhere adds 1 to the value, because x sums to one, and makes more matrices invertible.
    quadratic, linear = quadratic / unit + RIDGE * identity + 1.0, linear / unit
    parts = torch.split(linear, max(1, ENTRIES // quadratic.numel()))
    x = torch.cat([_active_set(quadratic, part) for part in parts])
    gradient = x @ quadratic - linear
    excess = gradient - (x * gradient).sum(1, keepdim=True)
    return x, torch.where(x > 0, excess.abs(), -excess).amax(1)


def _active_set(quadratic: Tensor, linear: Tensor) -> Tensor:
    """From the best corner: go towards the minimum with the others held at zero; who would become negative is held.

    Where that minimum is reached, everybody whose gradient is below the common level is let go. At least one of them
    then becomes positive, so every round of this ends lower.
    """
    size = linear.shape[1]
    x = functional.one_hot((quadratic.diagonal() - 2 * linear).argmin(1), size).to(linear.dtype)
    free = x > 0
    unsolved = torch.arange(len(x), device=x.device)
    for _ in range(10 * size):
        now, among, c = x[unsolved], free[unsolved], linear[unsolved]
        target, level = _minimum_among(among, quadratic, c)
        sinking = among & (target < 0)
        when = torch.where(sinking, now / (now - target), torch.inf)
        length = when.amin(1, keepdim=True).clamp_max(1)
        held = sinking & (when <= length)
        now = torch.where(held, 0.0, now + length * (target - now))
        arrived = ~sinking.any(1, keepdim=True)
        rising = arrived & ~among & (now @ quadratic - c < level - TOLERANCE)
        x[unsolved], free[unsolved] = now, among & ~held | rising
        unsolved = unsolved[(sinking | rising).any(1)]
        if not len(unsolved):
            break
    return x


def _minimum_among(free: Tensor, quadratic: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
    """Where the sum is one and all but the free entries are zero; and the gradient's level there, (problems, 1)."""
    most = int(free.sum(1).max())
    places = free.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
    used = free.gather(1, places)
    both = used.unsqueeze(2) & used.unsqueeze(1)
    identity = torch.eye(most, dtype=quadratic.dtype, device=quadratic.device)
    matrix = torch.where(both, quadratic[places.unsqueeze(2), places.unsqueeze(1)], identity)
    right = torch.stack([linear.gather(1, places) * used, used.to(linear.dtype)], dim=2)
    factor, _ = torch.linalg.cholesky_ex(matrix)
    least, ones = torch.cholesky_solve(right, factor).unbind(2)
    level = (1 - least.sum(1, keepdim=True)) / ones.sum(1, keepdim=True)
    return torch.zeros_like(linear).scatter(1, places, least + level * ones), level
