"""A client's side of an experiment: its data, its task, and where it keeps what it keeps."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, cast

import torch
from flwr.app import Context

from fedlag.birth import born
from fedlag.data import own
from fedlag.data.federated import Federated, Part, federate, held_by
from fedlag.errors import InputError, Lost
from fedlag.experiment import Experiment, load
from fedlag.federation.work import Source
from fedlag.flow import Batch, Client
from fedlag.flower.store import Store
from fedlag.flower.wire import Hello
from fedlag.round import Task

PARTS: tuple[Part, ...] = ("train", "validation", "test")


class Site(NamedTuple):
    client: int
    experiment: Experiment
    task: Task
    source: Source
    hello: Hello
    memory: object  # an example of what a client remembers


def experiment_of(home: Path, context: Context) -> Experiment:
    """The app's experiment.toml as changed by the run's `changes`, such as "rounds=5 training.lr=0.1"."""
    return load(home / "experiment.toml", *str(context.run_config.get("changes", "")).split())


def site_of(home: Path, context: Context) -> Site:
    """What this node's configuration says it is: client `partition-id`, with `data` of its own if these are named."""
    node = context.node_config
    if not isinstance(client := node.get("partition-id"), int):
        raise InputError(
            f"This SuperNode's partition-id is {client!r}, but it must say which client it is, by a whole number from "
            '0: --node-config "partition-id=0".'
        )
    changes = str(context.run_config.get("changes", ""))
    stamp = (home / "experiment.toml").stat().st_mtime_ns
    return _site(home, changes, stamp, client, str(node.get("data", "")), cast(int, node.get("classes", 0)))


@cache  # where one process serves many messages, as in a simulation
def _site(home: Path, changes: str, stamp: int, client: int, data: str, classes: int) -> Site:
    experiment = load(home / "experiment.toml", *changes.split())
    clients = experiment.data.clients
    if client not in range(clients):
        raise InputError(
            f"partition-id = {client} is not allowed; with data.clients = {clients} it is 0 to {clients - 1}."
        )
    federated, number = _data(experiment, client, data, classes)
    shape, kinds = tuple(federated.dataset.x.shape[1:]), federated.dataset.classes
    task, server = born(experiment, shape, kinds, clients)

    def source(client: int, part: str) -> Batch:
        return Batch(*federated.examples(number, cast(Part, part)))

    hello = Hello(
        client=client,
        shape=shape,
        classes=kinds,
        examples={part: len(getattr(federated.parts[number], part)) for part in PARTS},
        partition=federated.hash,
        experiment=experiment.hash,
        version=f"fedlag {version('fedlag')}, torch {torch.__version__}",
    )
    return Site(client, experiment, task, cache(source), hello, task.algorithm.remember_client(server.params))


def _data(experiment: Experiment, client: int, path: str, classes: int) -> tuple[Federated, int]:
    """The data, and the client's place in them: all that it holds, or its share of what everybody could load."""
    if not path:
        return federate(experiment.data), client
    if classes < 2:
        raise InputError(
            f"data = {path!r} is this site's own, so its node configuration must also say how many classes there are "
            "in all, for example classes=10."
        )
    return held_by(own.load(Path(path), classes), experiment.data, client), 0


def store(site: Site, run: str, context: Context) -> Store:
    """What this client keeps in a run: in the node's `fedlag-store`, else beside Flower's own files."""
    given = context.node_config.get("fedlag-store")
    root = Path(str(given)) if given else Path(os.environ.get("FLWR_HOME") or "~/.flwr") / "fedlag"
    return Store.of(root.expanduser(), run, site.client)


def kept(site: Site, store: Store, met: int) -> Client:
    """What the client held after the last round of its that the server took: nothing that came after counts."""
    if met < 0:
        return Client()
    client = store.load(before=met + 1, like=site.memory)
    if client.round != met:
        raise Lost(f"it no longer has what it kept after round {met + 1}, so it will be met anew")
    if store.rounds()[-1] > met:
        store.save(client)  # forgets later rounds, which would push this one out
    return client
