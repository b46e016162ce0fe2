"""Tiny official files, written the way the real ones are."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedlag.data import formats
from fedlag.data.download import Download
from fedlag.data.official import Piece, Source

GREY_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
COLOUR_NAMES = ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def digest(content: bytes | np.ndarray) -> str:
    return hashlib.sha256(content if isinstance(content, bytes) else content.tobytes()).hexdigest()


class Grey:
    """A data set in the manner of MNIST: 5 training and 3 test images of 4 x 3."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.x = generator.integers(0, 256, (8, 4, 3), np.uint8)
        self.y = np.array([0, 1, 2, 0, 1, 2, 0, 1], np.uint8)
        arrays = (self.x[:5], self.y[:5], self.x[5:], self.y[5:])
        self.contents = dict(zip(GREY_NAMES, map(idx, arrays), strict=True))
        self.source = Source(
            description="",
            classes=3,
            shape=(4, 3),
            pieces=(
                Piece(5, GREY_NAMES[:2], "grey_train.npz", digest(self.x[:5]), digest(self.y[:5])),
                Piece(3, GREY_NAMES[2:], "grey_test.npz", digest(self.x[5:]), digest(self.y[5:])),
            ),
            folders=("grey", "GREY/raw"),
        )


class Colour:
    """A data set in the manner of CIFAR-10: two training batches of 2 images and a test batch of 1."""

    def __init__(self) -> None:
        generator = np.random.default_rng(1)
        self.x = generator.integers(0, 256, (5, 3, 32, 32), np.uint8)  # channels first, as a network sees it
        self.y = np.array([4, 0, 1, 2, 3], np.uint8)
        records = np.concatenate([self.y[:, None], self.x.reshape(5, -1)], axis=1)
        batches = (records[:2], records[2:4], records[4:])
        self.contents = {name: batch.tobytes() for name, batch in zip(COLOUR_NAMES, batches, strict=True)}
        self.archive = tar_gz(self.contents, folder="colour-batches-bin")
        self.source = Source(
            description="",
            classes=5,
            shape=(32, 32, 3),
            pieces=(
                Piece(4, COLOUR_NAMES[:2], None, digest(self.x[:4].transpose(0, 2, 3, 1)), digest(self.y[:4])),
                Piece(1, COLOUR_NAMES[2:], None, digest(self.x[4:].transpose(0, 2, 3, 1)), digest(self.y[4:])),
            ),
            decode=formats.cifar10,
            downloads=(Download("http://127.0.0.1:9/colour.tar.gz", len(self.archive), digest(self.archive)),),
            folders=("colour",),
        )


def write(folder: Path, contents: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def gzipped(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in contents.items()}


def tar_gz(contents: Mapping[str, bytes], folder: str) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def zipped(contents: Mapping[str, bytes], folder: str) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"{folder}/{name}", content)
    return target.getvalue()


Damage = Callable[[bytes], bytes]


def cut_short(content: bytes) -> bytes:
    return content[:-7]


def altered(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
