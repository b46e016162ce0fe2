"""Initial values of parameters that methods add to a model. Every name draws from a stream of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedlag.errors import InputError
from fedlag.tree import Params


def head_weight(params: Mapping[str, Tensor]) -> Tensor:
    """The weight (classes, width) of a head that is one linear layer: tells what else must fit to the features."""
    weight = params.get("head.weight")
    if weight is None or weight.dim() != 2:
        names = ", ".join(name for name in params if name.startswith("head.")) or "no parameters"
        raise InputError(
            f"This method needs a head that is one linear layer, and this one has {names}; "
            "split the model at its last linear layer."
        )
    return weight


def normal(name: str, like: Tensor, seed: int) -> Tensor:
    """Standard normal numbers, in the shape, dtype and device of `like`."""
    return torch.randn(like.shape, generator=_stream(name, seed)).to(like)


def linear(name: str, inputs: int, outputs: int, like: Tensor, seed: int) -> Params:
    """`name.weight` and `name.bias` of a linear layer, uniform as PyTorch's own; dtype and device of `like`."""
    stream, bound = _stream(name, seed), 1 / math.sqrt(inputs)
    return {
        f"{name}.weight": torch.empty(outputs, inputs).uniform_(-bound, bound, generator=stream).to(like),
        f"{name}.bias": torch.empty(outputs).uniform_(-bound, bound, generator=stream).to(like),
    }


def _stream(name: str, seed: int) -> torch.Generator:
    drawn = np.random.default_rng([seed, *name.encode()]).integers(2**63)
    return torch.Generator().manual_seed(int(drawn))
