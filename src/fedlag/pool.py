"""Many experiments at once, each in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from fedlag.execution import Event, execute
from fedlag.experiment import Experiment
from fedlag.federation.workers import cores

Watch = Callable[[Experiment, Event], None]

GLANCE = 0.2  # seconds between looks at the running experiments


def ignore(experiment: Experiment, event: Event) -> None:
    """Nobody watches."""


def execute_all(work: Sequence[tuple[Experiment, Path]], workers: int | None = None, watch: Watch = ignore) -> None:
    """Run each experiment that isn't finished yet into its folder, on every core unless `workers` says otherwise.

    In fresh processes; what they write to events.jsonl is passed to `watch` as it comes.
    """
    processes = min(workers or cores(), len(work))
    each = max(1, cores() // max(processes, 1))
    if processes <= 1:
        for experiment, place in work:
            execute(experiment, place, lambda event, one=experiment: watch(one, event), each)  # type: ignore[misc]
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        try:
            waiting = {
                pool.submit(execute, experiment, place, workers=each): (experiment, place) for experiment, place in work
            }
            read = dict.fromkeys((place for _, place in work), 0)
            while waiting:
                time.sleep(GLANCE)
                for future in list(waiting):
                    _look(future, *waiting[future], read, watch)
                    if future.done():
                        del waiting[future]
                        future.result()  # raises what the process raised
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # nobody is to begin what waits
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # a run takes no harm, and nobody wants to wait for it
            raise


def _look(future: Future[Any], experiment: Experiment, place: Path, read: dict[Path, int], watch: Watch) -> None:
    """Pass on the events written since the last look."""
    done = future.done()
    path = place / "events.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in lines[read[place] :]:
        watch(experiment, json.loads(line))
    read[place] = len(lines)
    if done:
        watch(experiment, {"type": "finished", "folder": str(place)})
