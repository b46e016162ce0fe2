"""A second model beside the shared one: every name once more, as `own.<name>`."""

from __future__ import annotations

from fedlag.algorithm import Extension
from fedlag.net import Model
from fedlag.tree import Params

PREFIX = "own."


def extension(net: Model, params: Params) -> Extension:
    """What makes the parameters hold a second model, equal to the first."""
    trained = {PREFIX + name: params[name].clone() for name in net.parameter_names}
    carried = {PREFIX + name: params[name].clone() for name in net.statistic_names}
    return Extension(trained, carried)


def mirror(params: Params) -> Params:
    """The same, with the second model equal to the first."""
    return {**params, **{PREFIX + name: value for name, value in params.items() if PREFIX + name in params}}


def only(params: Params) -> Params:
    """The entries of the second model, under its names."""
    return {name: value for name, value in params.items() if name.startswith(PREFIX)}


def second(params: Params) -> Params:
    """The second model under the names of the first."""
    return {name.removeprefix(PREFIX): value for name, value in only(params).items()}
