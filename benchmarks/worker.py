"""One measurement: run one engine on one workload, and print one JSON line."""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.protocol import Clock, Unavailable, own_peak
from benchmarks.workloads import Workload

NAMED = ("fedlag", "torch", "flwr", "ray", "pfl", "fedjax", "jax", "flgo", "numpy")


def work(task: dict[str, Any]) -> dict[str, Any]:
    if task.get("cores"):
        os.sched_setaffinity(0, range(task["cores"]))
    workload = Workload.of(task["workload"])
    clock = Clock(task["spawned"], workload.rounds)
    engine = import_module(f"benchmarks.engines.{task['engine']}")
    outcome = engine.run(workload, clock, **task["options"])
    first, *rounds = clock.laps
    return {
        "startup": clock.startup,
        "first": first,
        "rounds": rounds,
        "foreign": clock.foreign,
        "steps": outcome.steps,
        "loss": outcome.loss,
        "note": outcome.note,
        "memory": own_peak(),
        "versions": dict(_versions()),
    }


def _versions() -> Any:
    yield "python", platform.python_version()
    for name in NAMED:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is not the result
    try:
        result = work(json.loads(sys.argv[1]))
    except Unavailable as reason:
        result = {"unavailable": str(reason)}
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
