"""How the official files, and their repacked copies, hold images.

Images come out as (examples, height, width) or (examples, height, width, 3) bytes, labels as (examples,) bytes.
"""

from __future__ import annotations

import gzip
import io
import lzma
import math
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fedlag.errors import InputError

Bytes = NDArray[np.uint8]

DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)
"""What the standard library's readers and Pillow raise on a damaged file."""


class File(NamedTuple):
    """The unpacked content of one official file, and where it was found."""

    path: Path
    content: bytes


def damaged(path: Path, what: object) -> InputError:
    return InputError(f"{path} is cut short, altered or not what its name says: {what}. Fetch it again.")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a damaged file makes a reader raise becomes one sentence that names the file."""
    try:
        yield
    except InputError:
        raise
    except DAMAGE as error:
        raise damaged(path, error) from error


def plain(path: Path) -> File:
    """A file's content, gunzipped where it was gzipped."""
    with reading(path):
        return File(path, _gunzipped(path.read_bytes()))


def members(archive: Path, names: Collection[str]) -> list[File]:
    """The files of these names, wherever they lie in a .zip or .tar.gz. Nothing is written to disk."""
    found = {}
    with reading(archive):
        for inside, file in _entries(archive):
            name = Path(inside).name.removesuffix(".gz")
            if name in names:
                found[name] = File(archive / inside, _gunzipped(file.read()))
        return [found[name] for name in names]


def _entries(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as unzipped:
            for name in unzipped.namelist():
                with unzipped.open(name) as file:
                    yield name, file
    else:
        with tarfile.open(archive) as untarred:
            for member in untarred:
                if content := untarred.extractfile(member):
                    yield member.name, content


def _gunzipped(content: bytes) -> bytes:
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def idx(file: File) -> Bytes:
    """The IDX format of MNIST and its relatives: 0 0 8, number of dimensions, dimensions (big-endian), bytes."""
    dimensions = file.content[3] if file.content[:3] == b"\0\0\x08" and len(file.content) > 3 else 0
    start = 4 + 4 * dimensions
    if not dimensions or len(file.content) < start:
        raise damaged(file.path, "it does not start like an IDX file of bytes")
    shape = [int(size) for size in np.frombuffer(file.content, ">u4", dimensions, offset=4)]
    body = np.frombuffer(file.content, np.uint8, offset=start)
    if body.size != math.prod(shape):
        raise damaged(file.path, f"{body.size:,} bytes of data where its header promises {math.prod(shape):,}")
    return body.reshape(shape)


def idx_pair(files: Sequence[File]) -> tuple[Bytes, Bytes]:
    images, labels = files
    return idx(images), idx(labels)


def cifar10(files: Sequence[File]) -> tuple[Bytes, Bytes]:
    return _cifar(files, labels=1)


def cifar100(files: Sequence[File]) -> tuple[Bytes, Bytes]:
    """With the fine labels."""
    return _cifar(files, labels=2)


def _cifar(files: Sequence[File], labels: int) -> tuple[Bytes, Bytes]:
    """CIFAR's binary version: per image its labels (CIFAR-100: coarse, then fine), then 3 x 32 x 32 bytes."""
    records = np.concatenate([_records(file, labels + 3 * 32 * 32) for file in files])
    return records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, labels - 1]


def _records(file: File, width: int) -> Bytes:
    if not file.content or len(file.content) % width:
        raise damaged(file.path, f"{len(file.content):,} bytes is not a whole number of images of {width:,} bytes")
    return np.frombuffer(file.content, np.uint8).reshape(-1, width)


@contextmanager
def npz(path: Path) -> Iterator[NpzFile]:
    """The arrays of an .npz; Python objects are never unpickled."""
    with path.open("rb") as file:  # np.load leaves a file open that it cannot read
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, NpzFile):
            raise ValueError("it holds a single array, not an .npz of several")
        with arrays:
            yield arrays


def repacked(path: Path) -> tuple[Bytes, Bytes]:
    """An .npz of `y` and either `x`, one xz stream of 28 x 28 images, or `s000`, …: WebP strips of 32 x 32 RGB."""
    with reading(path), npz(path) as arrays:
        if "x" in arrays:
            x = np.frombuffer(lzma.decompress(arrays["x"].tobytes()), np.uint8).reshape(-1, 28, 28)
        else:
            strips = [_strip(arrays[name].tobytes(), path) for name in sorted(arrays.files) if name.startswith("s")]
            x = np.concatenate(strips)
        return x, arrays["y"]


def _strip(image: bytes, path: Path) -> Bytes:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(f'{path} holds compressed images; to read them: pip install "fedlag[images]".') from error
    return np.asarray(Image.open(io.BytesIO(image))).reshape(-1, 32, 32, 3)
