"""Flower's real programs on this machine: a SuperLink, SuperNodes, and apps that run on them.

Every program gets a free port, a log, and a process group of its own, which is how it is ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import fedlag

PROGRAMS = Path(sys.executable).parent
PATIENCE = 600.0  # seconds for anything to happen on a busy machine


class Outcome(NamedTuple):
    status: str  # "finished:completed", "finished:failed" ...
    log: str


class Deployment:
    """Start with `deployment`, below."""

    def __init__(self, folder: Path, *, simulation: bool = False, superlink: Sequence[str] = ("--insecure",)) -> None:
        self.folder = folder
        self.port = free_port()
        self.store = folder / "flwr" / "fedlag"  # where clients keep what they keep
        self.simulation = simulation
        self.superlink = superlink
        self.connection = {"address": f"127.0.0.1:{self.port}", "insecure": True}
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(fedlag.__file__).parents[1]),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",  # Flower finds its own programs there
        }

    # Programs

    def start_superlink(self) -> None:
        self.start(
            "superlink",
            *("flower-superlink", "--port", str(self.port), "--database", str(self.folder / "superlink.db")),
            *("--disable-runtime-dependency-installation", *self.superlink),
            *(("--simulation",) if self.simulation else ()),
        )
        self._listens()

    def start_node(self, client: int, clients: int, options: Sequence[str] = ("--insecure",), **config: object) -> str:
        """A SuperNode for one client; returns its name."""
        name = f"node-{client}"
        settings = {"partition-id": client, "num-partitions": clients, **config}
        self.start(
            name,
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())),
            *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items()), *options),
        )
        return name

    def kill(self, name: str) -> None:
        """As a power failure would: the program and whatever it started, without a word."""
        program = self.programs.pop(name)
        with suppress(ProcessLookupError):  # it had ended already
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()

    def restart(self, name: str) -> None:
        """A power failure, and everything as it was started before."""
        self.kill(name)
        self._open(name)
        if name == "superlink":
            self._listens()

    def stop(self) -> None:
        for name in list(self.programs):
            self.kill(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def start(self, name: str, program: str, *arguments: str) -> None:
        self._commands[name] = [str(PROGRAMS / program), *arguments]
        self._open(name)

    def _open(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                self._commands[name],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _listens(self) -> None:
        until(lambda: listens(self.port) or self._ended("superlink"), "the SuperLink listens")

    def _ended(self, name: str) -> bool:
        if self.programs[name].poll() is None:
            return False
        raise AssertionError(f"{name} ended:\n{self.log(name)}")

    # Apps

    def run(self, app: Path, *, federation: str = "", **config: object) -> Outcome:
        """Run an app to its end."""
        return self.wait(self.submit(app, federation=federation, **config))

    def submit(self, app: Path, *, federation: str = "", **config: object) -> int:
        """Start a run; returns its id. config: the app's settings, with underscores for hyphens."""
        settings = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        extra = [*(("--run-config", settings) if settings else ())]
        extra += ["--federation-config", federation] if federation else []
        return int(self._told("run", str(app), "here", *extra)["run-id"])

    def wait(self, run: int, patience: float = PATIENCE) -> Outcome:
        until(lambda: self.status(run).startswith("finished"), f"run {run} finishes", patience, pause=1.0)
        return Outcome(self.status(run), self.flwr("log", str(run), "here", "--show"))

    def status(self, run: int) -> str:
        return str(self._told("list", "here", "--run-id", str(run))["runs"][0]["status"])

    def _told(self, *arguments: str) -> dict[str, Any]:
        """What flwr says in JSON. It ends well even where it says that something failed."""
        answer = self.flwr(*arguments, "--format", "json")
        told: dict[str, Any] = json.loads(answer[answer.index("{") :])
        assert told["success"], f"flwr {' '.join(arguments)} failed: {answer}"
        return told

    def flwr(self, *arguments: str) -> str:
        self._write_connection()
        done = subprocess.run(
            [str(PROGRAMS / "flwr"), *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"flwr {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}"
        return done.stdout

    def _write_connection(self) -> None:
        config = self.folder / "flwr" / "config.toml"
        config.parent.mkdir(exist_ok=True)
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.connection.items()]
        config.write_text("\n".join(["[superlink]", 'default = "here"', "[superlink.here]", *lines, ""]))


@contextmanager
def deployment(folder: Path, nodes: int = 0, **options: object) -> Iterator[Deployment]:
    """A SuperLink with so many SuperNodes; whatever was started is ended."""
    made = Deployment(folder, **options)  # type: ignore[arg-type]
    try:
        made.start_superlink()
        for client in range(nodes):
            made.start_node(client, nodes)
        yield made
    finally:
        made.stop()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], bool], what: str, patience: float = PATIENCE, pause: float = 0.2) -> None:
    """Wait for the condition to hold."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"waited {patience:.0f} s, but not: {what}"
        time.sleep(pause)
