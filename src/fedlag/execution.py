"""Run an experiment into a directory, or take up one that was interrupted."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedlag import checkpoint, device, labels, layers, sinks
from fedlag.birth import born
from fedlag.data.federated import Federated, federate
from fedlag.errors import InputError
from fedlag.experiment import Experiment, load
from fedlag.federation import Federation
from fedlag.federation.choice import Choice, choose, make
from fedlag.federation.sequential import Sequential, one_thread
from fedlag.federation.work import HELD_OUT
from fedlag.files import write_atomically
from fedlag.flow import Scores, Server
from fedlag.pairs import Pairs, kept
from fedlag.round import STAGES, TRAINED, Task
from fedlag.run import Round, Sampling, evaluate, rounds
from fedlag.sources import own, pooled
from fedlag.store import FILE, Store, wanted
from fedlag.tables import Tables
from fedlag.tables import candidates as candidate_layers

Event = dict[str, Any]
Notify = Callable[[Event], None]

SAVING_SHARE = 0.05  # of the time may go into checkpoints
RUNS = Path("runs")


@dataclass(frozen=True)
class Prepared:
    """An experiment's parts, ready for the first round."""

    task: Task
    server: Server
    federation: Federation
    choice: Choice
    sampling: Sampling
    partition: str  # digest of who holds which rows
    federated: Federated | None = None  # where the data are in this process
    least: int = 1  # replies a round needs to count
    stages: tuple[str, ...] = STAGES  # what is scored
    every_round: bool = False  # is saved: the clients keep theirs themselves, and go back by one round at most


def prepare(experiment: Experiment, workers: int | None = None) -> Prepared:
    """Load and divide the data, build the model, ask the algorithm how it begins, choose who trains.

    workers: cores to use; all unless given. Results don't depend on it.
    """
    where = device.present(experiment.device)
    federated = federate(experiment.data)
    shape, classes = federated.dataset.x.shape[1:], federated.dataset.classes
    task, server = born(experiment, shape, classes, federated.clients, where)
    source, sampling = own(federated, where), experiment.sampling
    if experiment.algorithm.pooled:
        source, sampling = pooled(federated, where), Sampling(fraction=1 / federated.clients)
    choice = choose(experiment.federation, task, source, workers)
    federation = make(choice, task, source, experiment.seed)
    return Prepared(task, server, federation, choice, sampling, federated.hash, federated)


def execute(
    experiment: Experiment,
    folder: Path | str | None = None,
    notify: Notify = lambda event: None,
    workers: int | None = None,
    prepare: Callable[[Experiment, int | None], Prepared] = prepare,
    patience: float = 0.0,
) -> Path:
    """Run to the end into `folder` (by default one named by method, seed and hash) and return it.

    A directory that holds an interrupted run of the same experiment is continued from its last checkpoint, to the
    same bits as if it had never stopped; a finished one is left as it is.
    patience: seconds to wait for another process that writes it.
    """
    folder = RUNS / experiment.folder if folder is None else Path(folder)
    sinks.must_be_installed(experiment.log)
    # The experiment may be refused, and then nothing is written yet.
    parts = None if (folder / "manifest.json").exists() else prepare(experiment, workers)
    with _only_writer(folder, patience):
        manifest = _claim(folder, experiment)
        if manifest.get("finished"):
            notify({"type": "finished", "folder": str(folder), "seconds": manifest["seconds"]})
            return folder
        parts = parts or prepare(experiment, workers)
        with one_thread(), _store(experiment, parts, folder) as store:
            _work(experiment, parts, folder, manifest, notify, store)
    return folder


def resume(folder: Path | str, notify: Notify = lambda event: None, workers: int | None = None) -> Path:
    """Continue an interrupted run; its directory knows its experiment."""
    must_be_a_run(folder)
    return execute(load(Path(folder) / "experiment.toml"), folder, notify, workers)


def must_be_a_run(folder: Path | str) -> None:
    if not (Path(folder) / "experiment.toml").exists():
        raise InputError(f"{folder} is not a run: it has no experiment.toml. `fedlag list runs` shows what there is.")


def _work(
    experiment: Experiment, parts: Prepared, folder: Path, manifest: Event, notify: Notify, store: Store | None
) -> None:
    manifest = {**manifest, "federation": parts.choice._asdict()}
    _write_json(folder / "manifest.json", manifest)
    notify({"type": "started", **manifest["federation"]})
    saved = checkpoint.load(folder, experiment.hash, parts.server)
    server, clients = saved or (parts.server, {})
    if store is not None:
        store.update(clients)
        store.rewind(server)
    parts.federation.restore(clients if store is None else store)
    tables = Tables.read(folder, before=server.round)
    before = _take_up_events(folder, server.round)
    started = time.monotonic() - before
    saving, last_saved = 0.0, time.monotonic()
    candidates = candidate_layers(parts.task.anatomy, parts.server.rule)
    participants = len(parts.sampling.cohort(parts.task.clients, experiment.seed, 0))
    pairs = Pairs.read(folder, server.round, kept(experiment.rounds, len(candidates), participants))
    if parts.federated is not None:
        labels.write(folder, parts.federated)

    def save(server: Server) -> None:
        tables.write(folder)
        pairs.write(folder)
        if store is None:
            checkpoint.save(folder, experiment.hash, server, parts.federation.clients())
        else:
            store.commit()
            checkpoint.save(folder, experiment.hash, server, {})
            store.follow(server.round)

    scored = partial(_scored, experiment)
    coming = rounds(parts.task, server, parts.federation, parts.sampling, experiment.seed, scored, parts.least)
    left = experiment.rounds - server.round
    with (
        (folder / "events.jsonl").open("a", encoding="utf-8") as events,
        sinks.opened(experiment, folder, server.round) as tell,
    ):
        for done in islice(coming, left):
            server = done.server
            pairs.add(done)
            scores = _record(tables, parts, done, candidates, _stages(experiment, parts, done.number))
            event = _event(experiment, done, scores, candidates, time.monotonic() - started)
            events.write(json.dumps(event) + "\n")
            events.flush()
            notify(event)
            tell(event)
            due = parts.every_round or (time.monotonic() - last_saved) * SAVING_SHARE >= saving
            if server.round < experiment.rounds and due:
                began = time.monotonic()
                save(server)
                last_saved = time.monotonic()
                saving = last_saved - began
    if left:
        save(server)
    finished = {"finished": _now(), "seconds": round(time.monotonic() - started, 3), "rounds": server.round}
    _write_json(folder / "manifest.json", {**manifest, "partition": parts.partition, **finished})
    notify({"type": "finished", "folder": str(folder), **finished})


@contextmanager
def _store(experiment: Experiment, parts: Prepared, folder: Path) -> Iterator[Store | None]:
    """Where clients are kept on disk; None where they are kept in memory."""
    path = folder / "checkpoint" / FILE
    on_disk = path.exists() or wanted(experiment.store, parts.task, parts.server)
    if on_disk and isinstance(parts.federation, Sequential):
        with closing(Store(path, parts.server)) as store:
            yield store
    else:
        yield None


def _scored(experiment: Experiment, number: int) -> tuple[str, ...]:
    """The parts that the models of round `number` (from 0) are scored on; none where it isn't evaluated."""
    done = number + 1
    return HELD_OUT if done % experiment.evaluate_every == 0 or done == experiment.rounds else ()


def _stages(experiment: Experiment, parts: Prepared, number: int) -> tuple[str, ...]:
    """Which models are scored after round `number` (from 0); after the last also what local training makes of them."""
    if not _scored(experiment, number):
        return ()
    last = number + 1 == experiment.rounds
    return STAGES + TRAINED if last and parts.stages == STAGES else parts.stages


def _record(
    tables: Tables,
    parts: Prepared,
    done: Round,
    candidates: tuple[layers.Layer, ...],
    stages: Sequence[str],
) -> dict[int, Scores]:
    """Put a round into the tables; returns every client's personal scores where this round is evaluated."""
    number = done.server.round
    tables.add_bytes(done)
    tables.add_layers(number, done.step, candidates)
    tables.add_dropped(number, done.dropped)
    if not stages:
        return {}
    scores = {stage: evaluate(parts.task, done.server, parts.federation, stage) for stage in stages}
    for stage, one in {**scores, "trained": done.trained}.items():
        tables.add_scores(number, stage, one)
    return scores["personal"]


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


@contextmanager
def _only_writer(folder: Path, patience: float) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=patience)
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
    known: Event = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if known and known.get("hash") != experiment.hash:
        raise InputError(
            f"{folder} holds a run of another experiment ({known.get('hash')}, this one is {experiment.hash}); "
            "choose another folder or remove that one."
        )
    # Also of a known run: what the results don't depend on, such as the trials made before, may have changed.
    write_atomically(folder / "experiment.toml", experiment.toml().encode())
    if known:
        return known
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
