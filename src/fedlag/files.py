"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedlag.errors import InputError


def write_atomically(path: Path, content: bytes | Callable[[Path], object]) -> None:
    """Replace the file in one step; whoever reads it, and whenever the process dies, finds the old or the new one.

    content: what goes into it, or a function that writes a file of the name it is given.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with writing(path):
            if callable(content):
                content(part)
            else:
                part.write_bytes(content)
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
            settle(path.parent)
    finally:
        with suppress(OSError):
            part.unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A refusal of the system becomes ours: one sentence that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); make room for it or choose another folder."
        ) from error


def settle(folder: Path) -> None:
    """Make new names in a folder survive a power failure."""
    if os.name == "nt":
        return  # Windows opens no folders, and needs none opened
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
