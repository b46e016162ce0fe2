"""Where the official files of a data set are found, and whether they are what they should be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlag.data import formats
from fedlag.data.download import Download
from fedlag.data.formats import Bytes, File
from fedlag.errors import InputError


class Piece(NamedTuple):
    """One official split: train or test."""

    size: int
    files: tuple[str, ...] = ()  # unpacked names
    repacked: str | None = None  # the .npz with the same content
    x: str | None = None  # SHA-256 of the images, (examples, height, width[, 3]) bytes
    y: str | None = None  # SHA-256 of the labels


@dataclass(frozen=True)
class Source:
    """A known data set: its official train and test splits, which `load` merges into one pool.

    shape: of one image as stored. folders: where under a root its files usually lie; the first is used in the cache.
    transposed: rows and columns are swapped in the files.
    """

    description: str
    classes: int
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    decode: Callable[[Sequence[File]], tuple[Bytes, Bytes]] = formats.idx_pair
    downloads: tuple[Download, ...] = ()
    folders: tuple[str, ...] = ()
    transposed: bool = False

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


def read(source: Source, root: Path) -> tuple[Bytes, Bytes] | None:
    """The pool, images (examples, channels, height, width), or None where its files are not all there."""
    if files := _official(source, root):
        blocks = [
            _verified(source, piece, *source.decode(own), where=", ".join(str(file.path) for file in own))
            for piece, own in zip(source.pieces, _by_piece(source, files), strict=True)
        ]
    elif is_repacked(source, root):
        paths = [root / str(piece.repacked) for piece in source.pieces]
        blocks = [
            _verified(source, piece, *formats.repacked(path), where=str(path))
            for piece, path in zip(source.pieces, paths, strict=True)
        ]
    else:
        return None
    images, labels = zip(*blocks, strict=True)
    return _channels_first(np.concatenate(images), source.transposed), np.concatenate(labels)


def is_repacked(source: Source, root: Path) -> bool:
    """Whether every piece is there as an .npz."""
    return all(piece.repacked and (root / piece.repacked).is_file() for piece in source.pieces)


def _official(source: Source, root: Path) -> list[File]:
    """The official files of all pieces in order: lying loose, gzipped, or in the archive they are published in."""
    names = [name for piece in source.pieces for name in piece.files]
    for folder in (*(root / folder for folder in source.folders), root):
        loose = [path for name in names for path in _either(folder / name, folder / f"{name}.gz")]
        if loose and len(loose) == len(names):
            return [formats.plain(path) for path in loose]
        for download in source.downloads:
            archive = folder / download.name
            if download.name.removesuffix(".gz") not in names and archive.is_file():
                _verify_archive(archive, download)
                return formats.members(archive, names)
    return []


def _either(*paths: Path) -> list[Path]:
    return [path for path in paths if path.is_file()][:1]


def _by_piece(source: Source, files: Sequence[File]) -> Iterator[list[File]]:
    remaining = iter(files)
    for piece in source.pieces:
        yield [next(remaining) for _ in piece.files]


def _verify_archive(path: Path, download: Download) -> None:
    size = path.stat().st_size
    if size != download.size:
        raise formats.damaged(path, f"{size:,} bytes instead of {download.size:,}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != download.sha256:
        raise formats.damaged(path, f"its SHA-256 is {found} instead of {download.sha256}")


def _verified(source: Source, piece: Piece, x: Bytes, y: Bytes, where: str) -> tuple[Bytes, Bytes]:
    if x.shape != (piece.size, *source.shape) or y.shape != (piece.size,):
        raise InputError(
            f"{where}: images of shape {x.shape} and labels of shape {y.shape} instead of "
            f"{(piece.size, *source.shape)} and {(piece.size,)}; what is there is cut short, altered or of other data."
        )
    for what, array, digest in (("images", x, piece.x), ("labels", y, piece.y)):
        if digest and (found := hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()) != digest:
            raise InputError(
                f"{where}: the {what} are not the official ones (SHA-256 {found} instead of {digest}); the file is "
                "altered or of another data set."
            )
    return x, y


def _channels_first(x: Bytes, transposed: bool) -> Bytes:
    if x.ndim == 4:
        return x.transpose(0, 3, 1, 2)
    return (x.transpose(0, 2, 1) if transposed else x)[:, None]
