"""An experiment's task and its server before the first round, given what its examples look like."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedlag import nets
from fedlag.experiment import Experiment
from fedlag.flow import Server
from fedlag.net import Model
from fedlag.round import Task, begin


def born(
    experiment: Experiment, shape: Sequence[int], classes: int, clients: int, device: torch.device | str = "cpu"
) -> tuple[Task, Server]:
    """The same wherever it is called. shape: of one example, (channels, height, width); device: of the parameters."""
    choice = experiment.model
    net = nets.build(
        choice.name,
        shape,
        classes,
        norm=choice.norm,
        hidden=choice.hidden,
        shortcut=choice.shortcut,
        seed=experiment.seed,
    )
    return begin(experiment.algorithm, Model(net.to(device)), experiment.training, clients, experiment.seed)
