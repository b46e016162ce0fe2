"""Which engines run which workloads, and how often."""

from __future__ import annotations

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
    "ours-batched": Engine("fedlag, batched", "ours", {"federation": "batched"}),
    "ours-vectorized": Engine("fedlag, vectorized", "ours", {"federation": "vectorized"}),
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
    "cnn": (*PLAIN, "ours", "ours-bf16", "ours-sequential"),
    "cnn-b32": (*PLAIN, "ours", "ours-bf16"),
    "cnn-eval": (*PLAIN, "plain-tests", "ours"),
    "cnn-b32-eval": (*PLAIN, "plain-tests", "ours"),
    "mlp": (*PLAIN, "ours", "ours-sequential", "ours-threaded"),
    "mlp-b32": (*PLAIN, "ours"),
    "mlp-eval": (*PLAIN, "plain-tests", "ours"),
    "mlp-b32-eval": (*PLAIN, "plain-tests", "ours"),
    "resnet9": (*PLAIN, "ours", "ours-bf16"),
    "resnet20w": (*PLAIN, "ours", "ours-bf16"),
    "resnet18": ("plain-1", "ours"),
}


def speed() -> list[Case]:
    return [Case("speed", name, WORKLOADS[name], engine) for name, engines in SPEED.items() for engine in engines]


def load() -> list[Case]:
    """The same with and without a busy core; two threads that wait for each other may take very long."""
    short = replace(WORKLOADS["cnn"], clients=4, train=200)
    return [
        Case("load", "cnn, busy core" if loaded else "cnn, quiet", short, engine, loaded=loaded, limit=120)
        for loaded in (False, True)
        for engine in (*PLAIN, "ours")
    ]


def curves() -> list[Case]:
    """Seconds a round against clients, against parameters and against cores."""
    few = Workload("mlp", GREY, batch=10, clients=10, train=40, test=10, rounds=5)
    engines = ("plain-1", "ours")
    clients = [replace(few, clients=count) for count in (10, 100, 1000)]
    widths = [replace(few, clients=20, hidden=(width,)) for width in (100, 400, 1600)]
    return [
        *(Case("curves", f"{one.clients} clients", one, engine) for one in clients for engine in engines),
        *(Case("curves", f"width {one.hidden[0]}", one, engine) for one in widths if one.hidden for engine in engines),
        *(Case("curves", f"{cores} cores", WORKLOADS["cnn"], engine, cores=cores) for cores in (1, 2)
          for engine in engines),
    ]  # fmt: skip


def cases(only: tuple[str, ...], in_short: bool) -> list[Case]:
    """The standard set, or what of it `only` names: sections, workloads, engines; of each kind all if none is named."""
    chosen = [*speed(), *load(), *curves()]
    for kind in ("section", "name", "engine"):
        named = {getattr(case, kind) for case in chosen} & set(only)
        chosen = [case for case in chosen if not named or getattr(case, kind) in named]
    return [replace(case, workload=quick(case.workload)) for case in chosen] if in_short else chosen
