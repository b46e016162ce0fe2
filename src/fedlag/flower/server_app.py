"""The server's half: the loop every other run has, over clients on Flower's nodes."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlag import check
from fedlag.birth import born
from fedlag.errors import InputError
from fedlag.execution import RUNS, Event, Prepared, execute
from fedlag.experiment import Experiment
from fedlag.federation.choice import Choice
from fedlag.files import write_atomically, writing
from fedlag.flower.federation import Flower
from fedlag.flower.orphan import end_when_orphaned
from fedlag.flower.roster import Roster
from fedlag.flower.site import experiment_of
from fedlag.flower.wire import Hello

log = logging.getLogger("flwr")  # where Flower's programs say what they do


ORPHAN = 120.0  # seconds within which the ServerApp of a SuperLink that was killed notices and ends


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of a run, as its app's pyproject.toml and `flwr run --run-config` give them."""

    folder: str = ""  # of the run; below the SuperLink's own folder unless absolute; named as by `fedlag run` if empty
    timeout: float = 600.0  # seconds a client is waited for
    minimum: int = 1  # replies a round needs to count

    def __post_init__(self) -> None:
        check.positive("timeout", self.timeout)
        check.count("minimum", self.minimum, least=1)


def server_app(file: str | Path) -> ServerApp:
    """The ServerApp of the experiment.toml that lies beside `file`."""
    home = Path(file).resolve().parent
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        end_when_orphaned()
        given = {key: context.run_config[key] for key in ("folder", "timeout", "minimum") if key in context.run_config}
        run(experiment_of(home, context), grid, Settings(**given))  # type: ignore[arg-type]

    return app


def run(experiment: Experiment, grid: Grid, settings: Settings) -> Path:
    """Run an experiment on the nodes of a grid; an interrupted run goes on from its last checkpoint."""
    folder = Path(settings.folder or RUNS / experiment.folder).absolute()
    absent: Counter[int] = Counter()
    prepared = partial(prepare, grid, settings, folder)
    return execute(experiment, folder, partial(_say, absent), prepare=prepared, patience=ORPHAN)


def prepare(
    grid: Grid, settings: Settings, folder: Path, experiment: Experiment, workers: int | None = None
) -> Prepared:
    """Meet the clients and learn what their data look like; the server needs none."""
    if experiment.algorithm.pooled:
        raise InputError(
            f"{experiment.method} trains on everybody's examples in one place; on Flower they stay where they are. "
            "Choose another method, or use `fedlag run`."
        )
    clients = experiment.data.clients
    cohort = len(experiment.sampling.cohort(clients, experiment.seed, 0))
    if settings.minimum > cohort:
        raise InputError(
            f"minimum = {settings.minimum} replies can never come: {cohort} of {clients} clients take part in a round "
            "(data.clients, sampling.fraction)."
        )
    roster = Roster(grid, experiment.hash)
    roster.present(range(clients), settings.minimum, settings.timeout)
    hellos = list(roster.hellos.values())
    shape, classes = _agreed(hellos)
    task, server = born(experiment, shape, classes, clients)
    federation = Flower(grid, roster, _name(folder), settings.timeout, settings.minimum)
    return Prepared(
        task,
        server,
        federation,
        Choice("flower", "every client on a node of its own", clients),
        experiment.sampling,
        partition=_partition(hellos),
        least=settings.minimum,
        stages=("personal",),  # the server's copy of personal layers is nobody's business
        every_round=True,
    )


def _agreed(hellos: list[Hello]) -> tuple[tuple[int, ...], int]:
    """What examples look like, if all clients say the same."""
    forms = {(hello.shape, hello.classes): hello.client for hello in hellos}
    if len(forms) > 1:
        said = "; ".join(f"client {client}: {shape}, {classes} classes" for (shape, classes), client in forms.items())
        raise InputError(f"The clients' examples differ ({said}); all must have one shape and number of classes.")
    for version, client in {hello.version: hello.client for hello in hellos}.items():
        log.info("Client %d runs %s", client, version)
    ((form, _),) = forms.items()
    return form


def _partition(hellos: list[Hello]) -> str:
    """Who holds which rows: what all say where all load the same, else a digest of what each says."""
    said = {hello.client: hello.partition for hello in hellos}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return hashlib.sha256("".join(said[client] for client in sorted(said)).encode()).hexdigest()


def _name(folder: Path) -> str:
    """Under which clients keep what they keep: of this run, and of no other that may have the same experiment."""
    path = folder / "federation"
    if not path.exists():
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, secrets.token_hex(8).encode())
    return path.read_text().strip()


def _say(absent: Counter[int], event: Mapping[str, Any] | Event) -> None:
    """A line for every round, and who was left out of it."""
    if event["type"] == "started":
        return
    if event["type"] == "finished":
        log.info("Finished: %s", event["folder"])
        for client, count in sorted(absent.items()):
            log.info("Client %d was left out of %d rounds", client, count)
        return
    accuracy = event["validation_accuracy"]
    log.info(
        "Round %d of %d%s; personal: %s",
        *(event["round"], event["rounds"]),
        "" if accuracy is None else f": validation accuracy {accuracy:.3f}",
        ", ".join(event["personal"]) or "nothing",
    )
    if event["skipped"]:
        log.warning("Round %d has too few replies and does not count", event["round"])
    for client, reason in event["dropped"].items():
        absent[int(client)] += 1
        log.warning("Client %s is left out of round %d: %s", client, event["round"], reason)
