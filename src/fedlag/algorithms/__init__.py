"""Every method by name. Other packages add theirs under the entry point group `fedlag.algorithms`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points

from fedlag.aggregate import CAGrad, GradDrop, Median, MultiKrum, PCGrad, TrimmedMean
from fedlag.algorithm import Algorithm, Phase
from fedlag.algorithms.apfl import APFL
from fedlag.algorithms.ditto import Ditto
from fedlag.algorithms.fedaf import FedAF
from fedlag.algorithms.fedala import FedALA
from fedlag.algorithms.fedas import FedAS
from fedlag.algorithms.fedavg import Centralised, FedAvg
from fedlag.algorithms.fedbabu import FedBABU
from fedlag.algorithms.fedcac import FedCAC
from fedlag.algorithms.feddbe import FedDBE
from fedlag.algorithms.feddyn import FedDyn
from fedlag.algorithms.fedexp import FedEXP
from fedlag.algorithms.fednova import FedNova
from fedlag.algorithms.fedpac import FedPAC
from fedlag.algorithms.fedprox import FedProx
from fedlag.algorithms.fedrep import FedRep
from fedlag.algorithms.fedrod import FedRoD
from fedlag.algorithms.fedspeed import FedSpeed
from fedlag.algorithms.flash import FLASH
from fedlag.algorithms.gpfl import GPFL
from fedlag.algorithms.moon import MOON
from fedlag.algorithms.perfedavg import PerFedAvg
from fedlag.algorithms.pfedme import PFedMe
from fedlag.algorithms.scaffold import SCAFFOLD
from fedlag.errors import unknown
from fedlag.lag import LAG
from fedlag.official import Official
from fedlag.optim import SGD, Adagrad, Adam, Yogi
from fedlag.personal import BatchNorms, Named, RandomLayers, WarmStart

REGISTRY: dict[str, Callable[..., Algorithm]] = {
    "fedavg": FedAvg,
    "fedavg-ft": partial(FedAvg, tune=(Phase(1),)),
    "local": partial(FedAvg, personal=Named("*")),
    "fedper": partial(FedAvg, personal=Named("head.*")),
    "lg-fedavg": partial(FedAvg, personal=Named("body.*")),
    "fedlag": partial(FedAvg, personal=LAG()),
    "fedlag-frozen": partial(FedAvg, personal=LAG(mode="frozen")),
    "random-layers": partial(FedAvg, personal=RandomLayers()),
    "warmstart": partial(FedAvg, personal=WarmStart()),
    "fedlag-official": partial(FedAvg, personal=Official()),
    "centralised": Centralised,
    "fedbabu": FedBABU,
    "fedbn": partial(FedAvg, personal=BatchNorms()),
    "feddyn": FedDyn,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "fedspeed": FedSpeed,
    "moon": MOON,
    "scaffold": SCAFFOLD,
    "fedcac": FedCAC,
    "feddbe": FedDBE,
    "fedpac": FedPAC,
    "fedrod": FedRoD,
    "fedrod-hyper": partial(FedRoD, predictor="hyper"),
    "gpfl": GPFL,
    "apfl": APFL,
    "ditto": Ditto,
    "fedala": FedALA,
    "fedas": FedAS,
    "perfedavg": PerFedAvg,
    "pfedme": PFedMe,
    "fedadagrad": partial(FedAvg, server=Adagrad()),
    "fedadam": partial(FedAvg, server=Adam(lr=0.01, beta2=0.99, eps=1e-3, bias_correction=False)),
    "fedavgm": partial(FedAvg, server=SGD(lr=1.0, momentum=0.9)),
    "fedyogi": partial(FedAvg, server=Yogi()),
    "flash": FLASH,
    "fedexp": FedEXP,
    "fednova": FedNova,
    "median": partial(FedAvg, aggregator=Median()),
    "trimmed-mean": partial(FedAvg, aggregator=TrimmedMean()),
    "multikrum": partial(FedAvg, aggregator=MultiKrum()),
    "pcgrad": partial(FedAvg, aggregator=PCGrad()),
    "graddrop": partial(FedAvg, aggregator=GradDrop()),
    "cagrad": partial(FedAvg, aggregator=CAGrad()),
    "fedaf": FedAF,
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
