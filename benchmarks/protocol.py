"""How a measurement is taken: one fresh process, rounds timed inside it, everybody else's CPU time noted.

The measuring process knows nothing of engines; the measured one is `benchmarks.worker`. Linux only (/proc).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
TICK = os.sysconf("SC_CLK_TCK")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SAMPLING = 0.5  # seconds between looks at the memory of a family of processes

Result = dict[str, Any]


class Outcome(NamedTuple):
    """What shows that an engine did the work."""

    loss: float  # of the last global model on all clients' test images
    steps: float  # gradient steps in a round, as counted by the engine
    note: str = ""  # what the engine chose by itself


class Unavailable(Exception):
    """This engine, as installed, can't run this workload; the text says why."""


class Clock:
    """An engine calls `ready` when its first round could begin, and `lap` after each of `rounds` + 1 rounds."""

    def __init__(self, spawned: float, rounds: int) -> None:
        self.spawned = spawned
        self.rounds = rounds + 1
        self.startup = 0.0
        self.laps: list[float] = []
        self.foreign = 0.0  # cores that other processes used during the timed rounds

    def ready(self) -> None:
        self._began = time.monotonic()
        self.startup = self._began - self.spawned

    def lap(self) -> None:
        self.laps.append(time.monotonic() - self._began)
        if len(self.laps) == 1:
            self._since, self._theirs = time.monotonic(), _others()
        elif len(self.laps) == self.rounds:
            self.foreign = max(0.0, _others() - self._theirs) / (time.monotonic() - self._since)
        self._began = time.monotonic()


def measure(python: Path, task: Result, threads: int | None, limit: float, log: Path) -> Result:
    """Run one task in a process of its own, and take down the JSON line it prints.

    threads: of every numerical library, their own choice if None. limit: seconds until it is ended.
    """
    given = json.dumps({**task, "spawned": time.monotonic()})
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [python, "-m", "benchmarks.worker", given], cwd=ROOT, env=environment(python, threads),
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        peak, until = 0, time.monotonic() + limit
        while process.poll() is None:
            if time.monotonic() >= until:
                end(process.pid)
                return {"error": f"not done after {limit:g} seconds"}
            members = list(_family(process.pid))
            if len(members) > 1:
                peak = max(peak, sum(map(_proportional, members)))
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAMPLING)
        printed = process.stdout.read().strip() if process.stdout else ""
    if not printed:
        return {"error": f"ended with code {process.returncode} and no result; see {log.relative_to(ROOT)}"}
    result: Result = json.loads(printed.splitlines()[-1])
    if "memory" in result:
        result["memory"] = max(result["memory"], peak)
    return result


def environment(python: Path = Path(sys.executable), threads: int | None = None) -> dict[str, str]:
    """Numerical libraries choose their own number of threads if None is given, whatever is set here.

    Peers see the benchmarks and nothing else of ours; our own interpreter sees what this one sees.
    """
    path = [str(ROOT), os.environ.get("PYTHONPATH", "") if python == Path(sys.executable) else ""]
    kept = {name: value for name, value in os.environ.items() if name not in THREADS}
    chosen = dict.fromkeys(THREADS, str(threads)) if threads is not None else {}
    return {**kept, **chosen, "PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONWARNINGS": "ignore"}


def end(pid: int) -> None:
    """End a process and all that came of it."""
    for member in list(_family(pid)):
        with suppress(ProcessLookupError):
            os.kill(member, 9)


def own_peak() -> int:
    """The most memory this process ever held, in bytes."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _others() -> float:
    """CPU seconds that were used, or taken by the machine's host, outside this process and its children."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    own = sum(_ticks(pid) for pid in _family(os.getpid()))
    return (user + nice + system + irq + softirq + steal - own) / TICK


def _ticks(pid: int) -> int:
    """Of CPU time used by the process and by children it has outlived."""
    return sum(map(int, _stat(pid)[11:15]))


def _family(root: int) -> Iterator[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; nothing where the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _proportional(pid: int) -> int:
    """Memory in bytes, pages shared with others counted in part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
