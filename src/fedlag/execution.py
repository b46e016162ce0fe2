"""Run an experiment into a directory, or take up one that was interrupted."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from filelock import FileLock, Timeout

from fedlag import checkpoint, layers, nets, sinks
from fedlag.data.federated import Federated, Part, federate
from fedlag.errors import InputError
from fedlag.experiment import Experiment, load
from fedlag.federation import Federation
from fedlag.federation.sequential import Sequential, one_thread
from fedlag.federation.work import HELD_OUT, Source
from fedlag.files import write_atomically
from fedlag.flow import Batch, Scores, Server
from fedlag.net import Model
from fedlag.round import Task, begin
from fedlag.run import Round, Sampling, evaluate, rounds
from fedlag.tables import Tables
from fedlag.tables import candidates as candidate_layers

Event = dict[str, Any]
Notify = Callable[[Event], None]

READY_LIMIT = 10**8  # numbers that may be kept as float32 besides the data as stored
SAVING_SHARE = 0.05  # of the time may go into checkpoints
RUNS = Path("runs")


@dataclass(frozen=True)
class Prepared:
    """An experiment's parts, ready for the first round."""

    federated: Federated
    task: Task
    server: Server
    federation: Federation
    sampling: Sampling


def prepare(experiment: Experiment) -> Prepared:
    """Load and divide the data, build the model, ask the algorithm how it begins."""
    federated = federate(experiment.data)
    choice = experiment.model
    net = nets.build(
        choice.name,
        federated.dataset.x.shape[1:],
        federated.dataset.classes,
        norm=choice.norm,
        hidden=choice.hidden,
        shortcut=choice.shortcut,
        seed=experiment.seed,
    )
    task, server = begin(experiment.algorithm, Model(net), experiment.training, federated.clients, experiment.seed)
    source, sampling = _own(federated), experiment.sampling
    if experiment.algorithm.pooled:
        source, sampling = _pooled(federated), Sampling(fraction=1 / federated.clients)
    return Prepared(federated, task, server, Sequential(task, source, experiment.seed), sampling)


def execute(experiment: Experiment, folder: Path | str | None = None, notify: Notify = lambda event: None) -> Path:
    """Run to the end into `folder` (by default one named by method, seed and hash) and return it.

    A directory that holds an interrupted run of the same experiment is continued from its last checkpoint, to the
    same bits as if it had never stopped; a finished one is left as it is.
    """
    folder = RUNS / experiment.folder if folder is None else Path(folder)
    sinks.must_be_installed(experiment.log)
    parts = None if (folder / "manifest.json").exists() else prepare(experiment)  # may refuse: nothing is written yet
    with _only_writer(folder):
        manifest = _claim(folder, experiment)
        if manifest.get("finished"):
            notify({"type": "finished", "folder": str(folder), "seconds": manifest["seconds"]})
            return folder
        with one_thread():
            _work(experiment, parts or prepare(experiment), folder, manifest, notify)
    return folder


def resume(folder: Path | str, notify: Notify = lambda event: None) -> Path:
    """Continue an interrupted run; its directory knows its experiment."""
    must_be_a_run(folder)
    return execute(load(Path(folder) / "experiment.toml"), folder, notify)


def must_be_a_run(folder: Path | str) -> None:
    if not (Path(folder) / "experiment.toml").exists():
        raise InputError(f"{folder} is not a run: it has no experiment.toml. `fedlag list runs` shows what there is.")


def _work(experiment: Experiment, parts: Prepared, folder: Path, manifest: Event, notify: Notify) -> None:
    saved = checkpoint.load(folder, experiment.hash, parts.server)
    server = parts.server
    if saved:
        server, clients = saved
        parts.federation.restore(clients)
    tables = Tables.read(folder, before=server.round)
    before = _take_up_events(folder, server.round)
    started = time.monotonic() - before
    saving, last_saved = 0.0, time.monotonic()
    candidates = candidate_layers(parts.task.anatomy, parts.server.rule)

    def save(server: Server) -> None:
        tables.write(folder)
        checkpoint.save(folder, experiment.hash, server, parts.federation.clients())

    scored = partial(_scored, experiment)
    coming = rounds(parts.task, server, parts.federation, parts.sampling, experiment.seed, scored)
    left = experiment.rounds - server.round
    with (
        (folder / "events.jsonl").open("a", encoding="utf-8") as events,
        sinks.opened(experiment, folder, server.round) as tell,
    ):
        for done in islice(coming, left):
            server = done.server
            scores = _record(tables, parts, done, candidates, bool(scored(done.number)))
            event = _event(experiment, done, scores, candidates, time.monotonic() - started)
            events.write(json.dumps(event) + "\n")
            events.flush()
            notify(event)
            tell(event)
            if server.round < experiment.rounds and (time.monotonic() - last_saved) * SAVING_SHARE >= saving:
                began = time.monotonic()
                save(server)
                last_saved = time.monotonic()
                saving = last_saved - began
    if left:
        save(server)
    finished = {"finished": _now(), "seconds": round(time.monotonic() - started, 3), "rounds": server.round}
    _write_json(folder / "manifest.json", {**manifest, "partition": parts.federated.hash, **finished})
    notify({"type": "finished", "folder": str(folder), **finished})


def _scored(experiment: Experiment, number: int) -> tuple[str, ...]:
    """The parts that the models of round `number` (from 0) are scored on; none where it isn't evaluated."""
    done = number + 1
    return HELD_OUT if done % experiment.evaluate_every == 0 or done == experiment.rounds else ()


def _record(
    tables: Tables,
    parts: Prepared,
    done: Round,
    candidates: tuple[layers.Layer, ...],
    evaluated: bool,
) -> dict[int, Scores]:
    """Put a round into the tables; returns every client's personal scores where this round is evaluated."""
    number = done.server.round
    tables.add_bytes(done)
    tables.add_layers(number, done.step, candidates)
    tables.add_dropped(number, done.dropped)
    if not evaluated:
        return {}
    scores = evaluate(parts.task, done.server, parts.federation, "personal")
    tables.add_scores(number, "personal", scores)
    tables.add_scores(number, "trained", done.trained)
    tables.add_scores(number, "global", evaluate(parts.task, done.server, parts.federation, "global"))
    return scores


def _event(
    experiment: Experiment,
    done: Round,
    scores: dict[int, Scores],
    candidates: tuple[layers.Layer, ...],
    seconds: float,
) -> Event:
    personal = done.step.personal if done.step else done.message.personal
    conflicts = done.step.conflicts if done.step else {}
    accuracy = [one["validation"].accuracy for one in scores.values()]
    return {
        "type": "round",
        "round": done.server.round,
        "rounds": experiment.rounds,
        "validation_accuracy": sum(accuracy) / len(accuracy) if accuracy else None,
        "personal": [layer.name for layer in candidates if not personal.isdisjoint(layer.names)],
        "conflicts": {name: one.count / one.pairs for name, one in conflicts.items() if one.pairs},
        "dropped": {str(client): reason for client, reason in done.dropped.items()},
        "skipped": done.step is None,
        "seconds": round(seconds, 3),
    }


def _own(federated: Federated) -> Source:
    """Everybody has its own examples, made ready once where they are few."""

    def examples(client: int, part: str) -> Batch:
        return Batch(*federated.examples(client, cast(Part, part)))

    return cache(examples) if federated.dataset.x.numel() < READY_LIMIT else examples


def _pooled(federated: Federated) -> Source:
    """Everybody trains on everybody's examples, and is scored on its own."""
    own = _own(federated)
    everything = [own(client, "train") for client in range(federated.clients)]
    together = Batch(torch.cat([batch.x for batch in everything]), torch.cat([batch.y for batch in everything]))
    return lambda client, part: together if part == "train" else own(client, part)


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(blocking=False)
    except Timeout:
        raise InputError(
            f"Another process is writing the run {folder}; wait for it, or end it, and call again."
        ) from None
    except OSError as error:
        raise InputError(f"The run directory {folder} cannot be written: {error.strerror}.") from error
    try:
        yield
    finally:
        lock.release()


def _claim(folder: Path, experiment: Experiment) -> Event:
    """The manifest of this run: the one there if it is of the same experiment, else a new one."""
    path = folder / "manifest.json"
    if path.exists():
        manifest: Event = json.loads(path.read_text(encoding="utf-8"))
        if manifest.get("hash") != experiment.hash:
            raise InputError(
                f"{folder} holds a run of another experiment ({manifest.get('hash')}, this one is {experiment.hash}); "
                "choose another folder or remove that one."
            )
        return manifest
    write_atomically(folder / "experiment.toml", experiment.toml().encode())
    manifest = {
        "method": experiment.title,
        "seed": experiment.seed,
        "hash": experiment.hash,
        "started": _now(),
        "versions": {name: version(name) for name in ("fedlag", "torch", "numpy")},
        "python": platform.python_version(),
        "machine": {"system": platform.platform(), "processor": platform.processor(), "cores": os.cpu_count()},
    }
    _write_json(path, manifest)
    return manifest


def _take_up_events(folder: Path, round: int) -> float:
    """Cut the events after a round, which will come again; returns the seconds spent up to it."""
    path = folder / "events.jsonl"
    kept, seconds = [], 0.0
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            break  # the process ended while writing this line
        if event["round"] > round:
            break
        kept.append(line)
        seconds = event["seconds"]
    write_atomically(path, "".join(f"{line}\n" for line in kept).encode())
    return seconds


def _write_json(path: Path, value: Event) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
