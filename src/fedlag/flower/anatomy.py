"""What a model is made of, read off the names and shapes of its state dict: all that a Flower server knows of it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedlag.layers import Anatomy, Module

STATISTICS = ("running_mean", "running_var")


def read_off(params: Mapping[str, Tensor]) -> Anatomy:
    """The modules in the order of the state dict, which is the order of registration.

    A module normalises if it has running statistics, or if none of its parameters has more than one dimension, as in
    layer and group normalisation. (So has a PReLU or a scale of one's own; they too follow the layer before them.)
    """
    owned: dict[str, list[str]] = {}
    for name in params:
        owned.setdefault(name.rpartition(".")[0], []).append(name)
    return Anatomy(tuple(_module(names, params) for names in owned.values()), tuple(params))


def is_statistic(name: str) -> bool:
    """Whether no gradient moves it."""
    return name.rpartition(".")[2] in STATISTICS


def _module(names: list[str], params: Mapping[str, Tensor]) -> Module:
    parameters = tuple(name for name in names if not is_statistic(name))
    statistics = tuple(name for name in names if is_statistic(name))
    return Module(parameters, statistics, bool(statistics) or all(params[name].dim() <= 1 for name in parameters))
