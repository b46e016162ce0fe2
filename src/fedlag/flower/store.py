"""What a site keeps between rounds, in files of its own: nobody else is ever sent them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedlag.checkpoint import decode, encode, kinds
from fedlag.errors import InputError
from fedlag.files import write_atomically, writing
from fedlag.flow import Client

log = logging.getLogger(__name__)

KEPT = 2  # a server that died in round r asks for it again, and then needs what a site had before it trained r


def root(context: Context) -> Path:
    """Where a node keeps its layers: the node configuration's `fedlag-store`, else beside Flower's own files."""
    given = context.node_config.get("fedlag-store")
    return (Path(str(given)) if given else Path(os.environ.get("FLWR_HOME") or "~/.flwr") / "fedlag").expanduser()


@dataclass(frozen=True)
class Store:
    """One site's copies in one run: a safetensors file for each of the last two rounds it trained."""

    folder: Path

    @classmethod
    def of(cls, root: Path, run: str, site: int) -> Store:
        """run: the name the server gave this run; site: the number of the partition, or of the node."""
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise InputError(f"The run is called {run!r}, but a run's name is 8 to 64 hexadecimal digits.")
        return cls(root / run / f"site-{site}")

    def save(self, client: Client) -> None:
        """Keep what a client holds after `client.round`. Rounds beyond it never came to count, and are forgotten."""
        tensors: list[Tensor] = []
        state = json.dumps(encode(client, tensors), allow_nan=False)
        tensors = [tensor.detach().cpu().contiguous().clone() for tensor in tensors]  # safetensors wants no sharing
        metadata = {"state": state, "sha256": _digest(state, tensors)}
        content = save({str(number): tensor for number, tensor in enumerate(tensors)}, metadata)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for leftover in self.folder.glob(".round-*"):
                leftover.unlink(missing_ok=True)
        write_atomically(self._path(client.round), content)
        earlier = [round for round in self.rounds() if round < client.round]
        for round in self.rounds():
            if round != client.round and round not in earlier[-(KEPT - 1) :]:
                self._path(round).unlink(missing_ok=True)

    def load(self, before: int, like: Any = None) -> Client:
        """What the client held when round `before` began; an unborn client if there is nothing, or nothing sound.

        like: an example of what it may remember; NamedTuples that don't occur in it are refused.
        """
        for round in reversed([round for round in self.rounds() if round < before]):
            try:
                return _read(self._path(round), like)
            except (OSError, SafetensorError, LookupError, ValueError, TypeError) as error:
                log.warning(
                    "%s cannot be used (%s); an older copy or the server's stands in.", self._path(round), error
                )
        return Client()

    def rounds(self) -> list[int]:
        """The rounds of which there is a file, in order."""
        return sorted(self._stamps())

    def _stamps(self) -> Iterator[int]:
        for path in self.folder.glob("round-*.safetensors"):
            if stamp := re.fullmatch(r"round-(\d+)", path.stem):
                yield int(stamp[1])

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"


def _read(path: Path, like: Any) -> Client:
    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
        # Cloned: sums may depend on how memory is aligned, and tensors of a run that went on had memory of their own.
        tensors = [file.get_tensor(str(number)).clone() for number in range(len(file.keys()))]
    state = metadata["state"]
    if _digest(state, tensors) != metadata["sha256"]:
        raise ValueError("it is not as it was written")
    client = decode(json.loads(state), tensors, kinds((Client(), like)))
    if not isinstance(client, Client):
        raise ValueError(f"it holds a {type(client).__name__}, not a client")
    return client


def _digest(state: str, tensors: Sequence[Tensor]) -> str:
    digest = hashlib.sha256(state.encode())
    for tensor in tensors:
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
