"""Save a run between two rounds, and take it up again to the same bits.

A checkpoint is a folder `checkpoint/round-000012` with the tensors in `tensors.safetensors` and everything else in
`state.json`, where a tensor stands as its number in the other file. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedlag.errors import InputError
from fedlag.files import settle, write_atomically, writing
from fedlag.flow import Client, Server

STATE, TENSORS = "state.json", "tensors.safetensors"


def save(folder: Path, experiment: str, server: Server, clients: Mapping[int, Client]) -> None:
    """Write a checkpoint below the run's folder; it replaces the one before, once it is complete.

    experiment: the experiment's hash.
    """
    tensors: list[Tensor] = []
    state = encode({"server": server, "clients": dict(clients)}, tensors)
    place = folder / "checkpoint"
    final = place / f"round-{server.round:06d}"
    draft, replaced = final.with_name(f"{final.name}.draft"), final.with_name(f"{final.name}.replaced")
    with writing(final):
        for leftover in (draft, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            draft.mkdir(parents=True)
            write_atomically(draft / TENSORS, lambda path: _write_tensors(path, tensors))
            content = {"experiment": experiment, "tensors": _digest(draft / TENSORS), "state": state}
            whole = {"sha256": hashlib.sha256(_json(content)).hexdigest(), "content": content}
            write_atomically(draft / STATE, _json(whole))
            if final.exists():
                os.replace(final, replaced)
            os.replace(draft, final)
            settle(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        for other in place.glob("round-*"):
            if other != final:
                shutil.rmtree(other)


def load(folder: Path, experiment: str, like: Server) -> tuple[Server, dict[int, Client]] | None:
    """The newest checkpoint below the run's folder; None when there is none.

    like: the server a fresh run begins with. The checkpoint may hold the NamedTuples found in it and no others, and
    its tensors come to the device of its parameters.
    """
    place = _newest(folder / "checkpoint")
    if place is None:
        return None
    content = _content(place / STATE)
    if content["experiment"] != experiment:
        raise InputError(
            f"The checkpoint {place} is of experiment {content['experiment']}, but this one is {experiment}; "
            f"choose another folder or remove {place.parent}."
        )
    path = place / TENSORS
    if _digest(path) != content["tensors"]:
        raise _damaged(path)
    device = next(tensor.device for tensor in like.params.values())
    with safe_open(path, "pt") as file:
        # Cloned: sums may depend on how memory is aligned, and the run that went on had memory of its own.
        tensors = [file.get_tensor(str(number)).clone().to(device) for number in range(len(file.keys()))]
    try:
        state = decode(content["state"], tensors, kinds((like, Client())))
    except LookupError as error:
        raise InputError(
            f"The checkpoint {place} was written by another version of fedlag or of the algorithm ({error.args[0]}); "
            f"continue with that one, or remove {place.parent} to start again."
        ) from error
    return state["server"], state["clients"]


# Any state as JSON and a list of tensors


def encode(value: Any, tensors: list[Tensor]) -> Any:
    """What JSON can hold stands for itself; all else is an object whose one key says what it is.

    The value's tensors are appended to `tensors`.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [encode(item, tensors) for item in value]
    if kind is float:
        return {"float": struct.pack(">d", value).hex()}
    if kind is Tensor:
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if kind is dict:
        return {"dict": [[encode(key, tensors), encode(item, tensors)] for key, item in value.items()]}
    if kind is tuple:
        return {"tuple": [encode(item, tensors) for item in value]}
    if kind is frozenset:
        return {"frozenset": sorted((encode(item, tensors) for item in value), key=_json)}
    if _named(value):
        return {_name(kind): {field: encode(item, tensors) for field, item in value._asdict().items()}}
    raise TypeError(f"a {_name(kind)} cannot be saved; states are made of plain values, tuples, dicts and tensors")


def decode(value: Any, tensors: list[Tensor], known: Mapping[str, type]) -> Any:
    """The inverse of `encode`; `known` are the NamedTuples that may occur, as `kinds` gives them."""
    if isinstance(value, list):
        return [decode(item, tensors, known) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "float":
            return struct.unpack(">d", bytes.fromhex(content))[0]
        case "tensor":
            return tensors[content]
        case "dict":
            return {decode(key, tensors, known): decode(item, tensors, known) for key, item in content}
        case "tuple":
            return tuple(decode(item, tensors, known) for item in content)
        case "frozenset":
            return frozenset(decode(item, tensors, known) for item in content)
    if kind not in known or known[kind]._fields != tuple(content):  # type: ignore[attr-defined]
        raise LookupError(f"it holds a {kind} of {', '.join(content)}, which this one does not know")
    return known[kind](**{field: decode(item, tensors, known) for field, item in content.items()})


def kinds(value: Any) -> dict[str, type]:
    """The NamedTuples that occur anywhere in the value, by name."""
    return {_name(kind): kind for kind in _kinds(value)}


def _kinds(value: Any) -> Iterator[type]:
    if _named(value):
        yield type(value)
    if isinstance(value, dict):
        yield from _kinds((*value.keys(), *value.values()))
    elif isinstance(value, tuple | list | frozenset):
        for item in value:
            yield from _kinds(item)


def _named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


# Files


def _newest(place: Path) -> Path | None:
    rounds = {int(path.name[6:]): path for path in place.glob("round-*") if re.fullmatch(r"round-\d+", path.name)}
    return rounds[max(rounds)] if rounds else None


def apart(tensors: list[Tensor]) -> dict[str, Tensor]:
    """The tensors by number, as safetensors takes them: it refuses memory that is shared."""
    own: dict[str, Tensor] = {}
    seen = set[int]()
    for number, tensor in enumerate(tensors):
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        own[str(number)] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return own


def _write_tensors(path: Path, tensors: list[Tensor]) -> None:
    try:
        save_file(apart(tensors), path)
    except SafetensorError as error:  # this is how it reports a full disk
        raise OSError(str(error)) from error


def _content(path: Path) -> dict[str, Any]:
    """What was saved, if that is still what the file says."""
    try:
        whole = json.loads(path.read_bytes())
        content: dict[str, Any] = whole["content"]
        sound = whole["sha256"] == hashlib.sha256(_json(content)).hexdigest()
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from error
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path) from error
    if not sound:
        raise _damaged(path)
    return content


def _damaged(path: Path, reason: str = "it is not as it was written") -> InputError:
    return InputError(
        f"{path} cannot be used ({reason}); put back a sound copy, or remove {path.parent.parent} to start again."
    )


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from error


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
