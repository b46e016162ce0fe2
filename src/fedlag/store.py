"""Clients on disk, for populations that do not fit into memory."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedlag import tree
from fedlag.checkpoint import apart, decode, encode, kinds
from fedlag.errors import InputError
from fedlag.flow import Client, Server
from fedlag.round import Task

WHERE = ("auto", "memory", "disk")
IN_MEMORY = 2**30  # bytes that all clients together may keep in memory, unless told otherwise

FILE = "clients.sqlite"
TABLE = """
create table if not exists client (
    client integer, round integer, state blob, tensors blob, digest text, primary key (client, round)
)
"""


def footprint(task: Task, server: Server) -> int:
    """Bytes that all clients together come to keep, once every one of them has trained."""
    kept = tree.select(server.params, task.kept)
    return task.clients * tree.nbytes((kept, task.algorithm.remember_client(server.params)))


def wanted(where: str, task: Task, server: Server) -> bool:
    """Whether clients are to be kept on disk; `where` is one of WHERE."""
    return where == "disk" or (where == "auto" and footprint(task, server) > IN_MEMORY)


class Store(MutableMapping[int, Client]):
    """What clients keep, in a database file; read when asked for, so that in memory are only those at work.

    A client's state stands beside the round it trained in. The one that the last checkpoint knows stays until the next
    checkpoint is whole, so that a run whose process ends at any moment goes on from there.
    """

    def __init__(self, path: Path, like: Server) -> None:
        """like: the server a fresh run begins with; states may hold the NamedTuples found in it and no others."""
        self._path = path
        self._known = kinds((like, Client()))
        self._device = next((tensor.device for tensor in like.params.values()), torch.device("cpu"))
        self._turn = threading.Lock()  # clients may come from several threads
        self._checkpoint = 0  # the round at which the last one stands
        with self._using():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, check_same_thread=False)
            self._database.execute("pragma page_size = 32768")  # states are large
            self._database.execute(TABLE)

    def rewind(self, server: Server) -> None:
        """Back to where the server stands: as if no client had trained since."""
        with self._using() as database:
            database.execute("delete from client where round >= ?", [server.round])
            database.commit()
            latest = dict(database.execute("select client, max(round) from client group by client"))
        lost = [client for client, round in server.met.items() if latest.get(client, -1) < round]
        if lost:
            raise self._damaged(f"it lacks what client {lost[0]} kept after round {server.met[lost[0]]}")
        self._checkpoint = server.round

    def commit(self) -> None:
        """Make all that was put in survive; a checkpoint may follow."""
        with self._using() as database:
            database.commit()

    def follow(self, round: int) -> None:
        """A checkpoint stands at this round: nobody needs to go back behind it."""
        self._checkpoint = round

    def __getitem__(self, client: int) -> Client:
        with self._using() as database:
            query = "select state, tensors, digest from client where client = ? order by round desc limit 1"
            row = database.execute(query, [client]).fetchone()
        if row is None:
            raise KeyError(client)
        state, blob, digest = row
        if _digest(state, blob) != digest:
            raise self._damaged(f"what client {client} kept is not as it was written")
        held = load(blob)
        # Cloned: sums may depend on how memory is aligned.
        tensors = [held[str(number)].clone().to(self._device) for number in range(len(held))]
        kept: Client = decode(json.loads(state), tensors, self._known)
        return kept

    def __setitem__(self, client: int, kept: Client) -> None:
        tensors: list[torch.Tensor] = []
        state = json.dumps(encode(kept, tensors), allow_nan=False).encode()
        blob = save(apart(tensors))
        with self._using() as database:
            database.execute(
                "delete from client where client = :client and (round >= :checkpoint or round < "
                "(select max(round) from client where client = :client and round < :checkpoint))",
                {"client": client, "checkpoint": self._checkpoint},
            )
            row = (client, kept.round, state, blob, _digest(state, blob))
            database.execute("insert or replace into client values (?, ?, ?, ?, ?)", row)

    def __delitem__(self, client: int) -> None:
        with self._using() as database:
            if not database.execute("delete from client where client = ?", [client]).rowcount:
                raise KeyError(client)

    def __iter__(self) -> Iterator[int]:
        with self._using() as database:
            clients = database.execute("select distinct client from client order by client").fetchall()
        return (client for (client,) in clients)

    def __len__(self) -> int:
        with self._using() as database:
            (count,) = database.execute("select count(distinct client) from client").fetchone()
        return int(count)

    def close(self) -> None:
        """Let go of the file. What was not committed is gone."""
        self._database.close()

    @contextmanager
    def _using(self) -> Iterator[Any]:
        try:
            with self._turn:
                yield getattr(self, "_database", None)
        except (sqlite3.Error, OSError, SafetensorError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> InputError:
        return InputError(
            f"{self._path} cannot be used ({reason}); make room or put back a sound copy, "
            f"or remove {self._path.parent} to start again."
        )


def _digest(state: bytes, blob: bytes) -> str:
    digest = hashlib.sha256(state)
    digest.update(blob)
    return digest.hexdigest()
