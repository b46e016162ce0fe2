"""A few images in place of many: networks to condense under, and how far means of images and labels are apart."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedlag import tree
from fedlag.net import Model
from fedlag.randomness import seeded
from fedlag.tree import Params, Tree

TINY = 1e-8  # added to probabilities before their logarithm


def resampled(net: Model, params: Params, kept: float, seed: int) -> Params:
    """γ w + (1 - γ) w̃, with w̃ drawn as each module draws its initial weights. What no gradient moves stays."""
    fresh = copy.deepcopy(net.net).cpu()  # every device draws other numbers
    with seeded(seed), torch.no_grad():
        for module in fresh.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.track_running_stats = False  # the count of batches it would reset is taken out of every Model
            getattr(module, "reset_parameters", lambda: None)()
        drawn = {name: value for name, value in fresh.named_parameters() if name in net.parameter_names}
        return {**params, **tree.map(lambda new, old: torch.lerp(new.to(old), old, kept), drawn, params)}


def sliced_gaps(a: Tensor, b: Tensor) -> Tensor:
    """Squared sliced Wasserstein distance between a[i] and b[i], (classes,).

    Between single points it is the mean of <direction, a - b>² over all directions: |a - b|² / size.
    """
    return (a - b).square().mean(1)


def disagreement(a: Tensor, b: Tensor) -> Tensor:
    """½ Σ (KL(a_c ‖ b_c) + KL(b_c ‖ a_c)) over classes c; a and b are (classes, classes), rows sum to one."""
    return ((a - b) * ((a + TINY).log() - (b + TINY).log())).sum() / 2


def means_of_parts(values: Tensor, parts: int) -> Tensor:
    """Means of so many equal parts of the rows, one after another: (parts, width)."""
    return values.reshape(parts, -1, values.shape[1]).mean(1)


def means_of_owners(told: Tree) -> Tree:
    """For every class the mean of what clients that have it tell, and how many have it."""
    owns = (told["counts"] > 0).to(told["means"].dtype)  # (clients, classes)
    owners = owns.sum(0)
    return {"means": (owns[..., None] * told["means"]).sum(0) / owners.clamp_min(1)[:, None], "counts": owners}
