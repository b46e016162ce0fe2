"""Which engines run which workloads, and how often."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.workloads import GREY, WORKLOADS, Workload, quick


@dataclass(frozen=True)
class Engine:
    """A file in `engines`, and how it is called."""

    label: str
    module: str
    options: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None  # of numerical libraries; their own choice if None
    peer: str = ""  # whose environment it runs in; ours if empty


PLAIN = "plain", "plain-1"  # the ratios are to the faster of these
ENGINES = {
    "plain": Engine("plain loop", "plain"),
    "plain-1": Engine("plain loop, 1 thread", "plain", threads=1),
    "plain-tests": Engine("plain loop, test images only", "plain", {"score_training": False}),
    "ours": Engine("**fedlag**", "ours"),
    "ours-bf16": Engine("**fedlag**, bf16", "ours", {"precision": "bf16"}),
    "ours-sequential": Engine("fedlag, sequential", "ours", {"federation": "sequential"}),
    "ours-threaded": Engine("fedlag, threaded", "ours", {"federation": "threaded"}),
    "ours-processes": Engine("fedlag, processes", "ours", {"federation": "processes"}),
    "ours-batched": Engine("fedlag, batched", "ours", {"federation": "batched"}),
    "flower": Engine("Flower", "flower", peer="flower"),
    "pfl": Engine("pfl", "pfl", peer="pfl"),
    "pfl-1": Engine("pfl, 1 thread", "pfl", threads=1, peer="pfl"),
    "fedjax": Engine("FedJAX", "fedjax", peer="fedjax"),
    "flgo": Engine("flgo", "flgo", peer="flgo"),
}


@dataclass(frozen=True)
class Case:
    """One measurement, to be taken several times."""

    section: str
    name: str  # of the workload
    workload: Workload
    engine: str
    cores: int | None = None  # this many only
    loaded: bool = False  # beside a process that keeps one core busy
    limit: float = 900.0  # seconds


SPEED = {
    "cnn": (*PLAIN, "ours", "ours-bf16", "ours-sequential", "flower", "pfl", "pfl-1", "fedjax", "flgo"),
    "cnn-b32": (*PLAIN, "ours", "ours-bf16"),
    "cnn-eval": (*PLAIN, "plain-tests", "ours"),
    "cnn-b32-eval": (*PLAIN, "plain-tests", "ours"),
    "mlp": (*PLAIN, "ours", "ours-sequential", "ours-threaded", "ours-processes", "flower", "pfl-1", "fedjax", "flgo"),
    "mlp-b32": (*PLAIN, "ours"),
    "mlp-eval": (*PLAIN, "plain-tests", "ours"),
    "mlp-b32-eval": (*PLAIN, "plain-tests", "ours"),
    "resnet9": (*PLAIN, "ours", "ours-bf16"),
    "resnet20w": (*PLAIN, "ours", "ours-bf16"),
    "resnet18": ("plain-1", "ours"),
}


def cases(only: tuple[str, ...], in_short: bool) -> list[Case]:
    """The standard set, or of it what `only` names: sections, workloads, engines, and all of a kind that isn't named.

    A workload and an engine that are both named are measured whether or not the standard set has them together.
    """
    asked = [
        Case("speed", name, WORKLOADS[name], engine)
        for name in only if name in WORKLOADS
        for engine in only if engine in ENGINES
    ]  # fmt: skip
    chosen = asked or [*speed(), *load(), *curves()]
    for kind in ("section", "name", "engine"):
        named = {getattr(case, kind) for case in chosen} & set(only)
        chosen = [case for case in chosen if not named or getattr(case, kind) in named]
    if not in_short:
        return chosen
    return [replace(case, name=f"tiny {case.name}", workload=quick(case.workload), limit=120) for case in chosen]


def speed() -> list[Case]:
    return [Case("speed", name, WORKLOADS[name], engine) for name, engines in SPEED.items() for engine in engines]


def load() -> list[Case]:
    """The same with and without a busy core; threads that wait for each other may then take very long."""
    short = replace(WORKLOADS["cnn"], clients=4, train=100)
    return [
        Case("load", "cnn, busy core" if loaded else "cnn, quiet", short, engine, loaded=loaded, limit=120)
        for loaded in (False, True)
        for engine in (*PLAIN, "ours")
    ]


def curves() -> list[Case]:
    """Seconds a round against clients, against parameters and against cores."""
    few = Workload("mlp", GREY, batch=10, clients=20, train=40, test=10, rounds=3)
    short = replace(WORKLOADS["cnn"], clients=8, train=100)
    points: list[tuple[str, Workload, int | None]] = [
        *((f"784-100-10, {count:,} clients of 40", replace(few, clients=count), None) for count in (10, 100, 1000)),
        *((f"784-{width}-10, 20 clients of 40", replace(few, hidden=(width,)), None) for width in (30, 300, 3000)),
        *((f"cnn, 8 clients of 100, {cores} core{'s' * (cores > 1)}", short, cores) for cores in counts()),
    ]  # fmt: skip
    return [Case("curves", name, one, engine, cores) for name, one, cores in points for engine in ("plain-1", "ours")]


def counts() -> list[int]:
    """Of cores: one, two, four … and all of this machine."""
    every = os.cpu_count() or 1
    return sorted({every, *(2**power for power in range(every.bit_length()) if 2**power <= every)})
