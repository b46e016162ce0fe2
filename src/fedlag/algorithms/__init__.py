"""Every method by name. Other packages add theirs under the entry point group `fedlag.algorithms`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points

from fedlag.algorithm import Algorithm, Phase
from fedlag.algorithms.fedavg import Centralised, FedAvg
from fedlag.errors import unknown
from fedlag.lag import LAG
from fedlag.personal import Named, WarmStart

REGISTRY: dict[str, Callable[..., Algorithm]] = {
    "fedavg": FedAvg,
    "fedavg-ft": partial(FedAvg, tune=(Phase(1),)),
    "local": partial(FedAvg, personal=Named("*")),
    "fedper": partial(FedAvg, personal=Named("head.*")),
    "lg-fedavg": partial(FedAvg, personal=Named("body.*")),
    "fedlag": partial(FedAvg, personal=LAG()),
    "fedlag-frozen": partial(FedAvg, personal=LAG(mode="frozen")),
    "warmstart": partial(FedAvg, personal=WarmStart()),
    "centralised": Centralised,
}


def find(name: str) -> Callable[..., Algorithm]:
    """The method of that name: ours, or one another package registered."""
    if name in REGISTRY:
        return REGISTRY[name]
    others = {entry.name: entry for entry in entry_points(group="fedlag.algorithms")}
    if name in others:
        made: Callable[..., Algorithm] = others[name].load()
        return made
    raise unknown("method", name, [*REGISTRY, *others])
