"""Personalised federated learning that people can trust.

import fedlag

experiment = fedlag.load({"algorithm": "fedlag", "rounds": 20}, "data.alpha=0.1")
folder = fedlag.execute(experiment)
print(fedlag.summarise(fedlag.read(folder)))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlag.aggregate import Aggregator, Mean
    from fedlag.algorithm import Algorithm, Phase, Training
    from fedlag.algorithms import REGISTRY
    from fedlag.algorithms.fedavg import FedAvg
    from fedlag.comparison import compare
    from fedlag.data.federated import Data, federate
    from fedlag.divergence import analyze
    from fedlag.errors import InputError
    from fedlag.execution import execute, resume
    from fedlag.experiment import Experiment, load, variants
    from fedlag.lag import LAG
    from fedlag.net import Model, Net, join, split
    from fedlag.optim import SGD, Adam
    from fedlag.personal import First, Last, Middle, Named, Nothing, RandomLayers, Rule, WarmStart
    from fedlag.results import read, summarise, verdict

# Loaded when first asked for: the command line must not wait for torch to print its help.
_HOMES = {
    "aggregate": ("Aggregator", "Mean"),
    "algorithm": ("Algorithm", "Phase", "Training"),
    "algorithms": ("REGISTRY",),
    "algorithms.fedavg": ("FedAvg",),
    "comparison": ("compare",),
    "data.federated": ("Data", "federate"),
    "divergence": ("analyze",),
    "errors": ("InputError",),
    "execution": ("execute", "resume"),
    "experiment": ("Experiment", "load", "variants"),
    "lag": ("LAG",),
    "net": ("Model", "Net", "join", "split"),
    "optim": ("SGD", "Adam"),
    "personal": ("First", "Last", "Middle", "Named", "Nothing", "RandomLayers", "Rule", "WarmStart"),
    "results": ("read", "summarise", "verdict"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "LAG",
    "REGISTRY",
    "SGD",
    "Adam",
    "Aggregator",
    "Algorithm",
    "Data",
    "Experiment",
    "FedAvg",
    "First",
    "InputError",
    "Last",
    "Mean",
    "Middle",
    "Model",
    "Named",
    "Net",
    "Nothing",
    "Phase",
    "RandomLayers",
    "Rule",
    "Training",
    "WarmStart",
    "analyze",
    "compare",
    "execute",
    "federate",
    "join",
    "load",
    "read",
    "resume",
    "split",
    "summarise",
    "variants",
    "verdict",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedlag' has no attribute {name!r}")
    return getattr(import_module(f"fedlag.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
