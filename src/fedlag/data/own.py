"""Your own data: arrays, an .npz file, or a folder of images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlag.data.dataset import Dataset, from_numpy
from fedlag.data.formats import DAMAGE, npz
from fedlag.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
"""Files with other endings are passed over."""


def is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.endswith(".npz") or Path(name).exists()


def from_arrays(
    x: ArrayLike, y: ArrayLike, name: str = "own", clients: ArrayLike | None = None, classes: int | None = None
) -> Dataset:
    """A data set of your own arrays.

    x: (examples, features), (examples, height, width), (examples, channels, height, width) or (examples, height,
    width, 1 or 3). Bytes are taken for pixels 0..255 and shown to a network as -1..1, anything else as it is.
    Features become (examples, features, 1, 1), so every data set has the same four dimensions.
    y: (examples,) whole numbers 0..classes-1. clients: (examples,) whose each example is, as numbers or names.
    classes: how many there are, where these are only a part of the data and some may be missing.
    """
    labels, classes = _labels(np.asarray(y), name, classes)
    pixels = _pixels(np.asarray(x), name)
    if len(pixels) != len(labels):
        raise InputError(f"{name}: x has {len(pixels):,} examples and y {len(labels):,} labels; they must agree.")
    owners = None if clients is None else _owners(np.asarray(clients), len(labels), name)
    return from_numpy(name, pixels, labels, classes, owners)


def load(path: Path, classes: int | None = None) -> Dataset:
    """An .npz of x, y and possibly client, or a folder of images: class/image or client/class/image.

    classes: of a part of the data, as in `from_arrays`.
    """
    path = path.expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _npz(path, classes)
    raise InputError(f"There is no file or folder {path}; data.name is a known data set or the path of your own.")


def _npz(path: Path, classes: int | None) -> Dataset:
    try:
        with npz(path) as file:
            arrays = {key: file[key] for key in ("x", "y", "client") if key in file}
    except DAMAGE as error:
        raise InputError(
            f"{path} cannot be read as an .npz of plain arrays x, y and possibly client (Python objects are never "
            f"unpickled): {error}."
        ) from error
    if not {"x", "y"} <= arrays.keys():
        raise InputError(f"{path} must hold the arrays x and y; it has {', '.join(arrays) or 'neither'}.")
    return from_arrays(arrays["x"], arrays["y"], _name(path), arrays.get("client"), classes)


def _name(path: Path) -> str:
    """Never the name of a known data set, whatever the file is called; the same on every machine."""
    return f"own:{path.resolve().name}"


def _labels(y: NDArray[Any], name: str, classes: int | None) -> tuple[NDArray[np.int64], int]:
    if y.ndim != 1 or y.dtype.kind not in "iub" or not y.size:
        raise InputError(f"{name}: y must be one whole number per example; it is {y.dtype} of shape {y.shape}.")
    labels = y.astype(np.int64)
    present = np.unique(labels)
    if classes is not None:
        if present[0] < 0 or present[-1] >= classes:
            raise InputError(
                f"{name}: y has labels from {present[0]} to {present[-1]}; with {classes} classes they are 0 to "
                f"{classes - 1}."
            )
        return labels, classes
    if len(present) < 2:
        raise InputError(f"{name}: all labels are {present[0]}; at least 2 classes are needed.")
    if present[0] != 0 or present[-1] != len(present) - 1:
        raise InputError(
            f"{name}: y has {len(present)} different labels from {present[0]} to {present[-1]}; number the classes "
            f"0 to {len(present) - 1}, every one with an example."
        )
    return labels, len(present)


def _pixels(x: NDArray[Any], name: str) -> NDArray[np.uint8] | NDArray[np.float32]:
    if x.dtype.kind not in "iubf" or x.ndim not in (2, 3, 4) or not x.size:
        raise InputError(
            f"{name}: x must be numbers of shape (examples, features), (examples, height, width) or (examples, "
            f"channels, height, width); it is {x.dtype} of shape {x.shape}."
        )
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            bad = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))[0])
            raise InputError(f"{name}: example {bad} of x holds a value that is not a finite number.")
    if x.ndim == 2:
        return x[:, :, None, None]
    if x.ndim == 3:
        return x[:, None]
    return x.transpose(0, 3, 1, 2) if x.shape[3] in (1, 3) and x.shape[1] not in (1, 3) else x


def _owners(clients: NDArray[Any], examples: int, name: str) -> NDArray[np.int64]:
    if clients.shape != (examples,) or clients.dtype.kind not in "iuU":
        raise InputError(
            f"{name}: client must be one number or name per example, {examples:,} in all; it is {clients.dtype} of "
            f"shape {clients.shape}."
        )
    return np.unique(clients, return_inverse=True)[1].astype(np.int64)


def _folder(root: Path) -> Dataset:
    outer = _subfolders(root)
    deep = [folder for folder in outer if _subfolders(folder)]
    if deep and (shallow := [folder for folder in outer if _images(folder)]):
        raise InputError(
            f"{root} mixes class/image ({shallow[0].name}) with client/class/image ({deep[0].name}); use one of them."
        )
    owners = deep or [root]
    found = [
        (image, folder.name, number)
        for number, owner in enumerate(owners)
        for folder in _subfolders(owner)
        for image in _images(folder)
    ]
    if not found:
        raise InputError(f"{root} holds no images; there must be a folder per class, or a folder of these per client.")
    paths, labels, numbers = zip(*found, strict=True)
    _, y = np.unique(labels, return_inverse=True)
    return from_arrays(_pictures(paths), y, _name(root), numbers if deep else None)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGES and not path.name.startswith("."))


def _pictures(paths: Sequence[Path]) -> NDArray[np.uint8]:
    """(examples, height, width), or (examples, 3, height, width) if any is in colour."""
    pictures = [_picture(path) for path in paths]
    for path, picture in zip(paths, pictures, strict=True):
        if picture.shape[1:] != pictures[0].shape[1:]:
            raise InputError(
                f"{path} is {_size(picture)} but {paths[0]} is {_size(pictures[0])}; all images must have one size."
            )
    channels = max(len(picture) for picture in pictures)
    return np.stack([np.broadcast_to(picture, (channels, *picture.shape[1:])) for picture in pictures])


def _picture(path: Path) -> NDArray[np.uint8]:
    """(1 or 3, height, width)."""
    try:
        import PIL.Image
    except ImportError as error:
        raise InputError('Folders of images need Pillow: pip install "fedlag[images]".') from error
    try:
        with PIL.Image.open(path) as image:
            return _bytes(image, path)
    except (OSError, SyntaxError) as error:
        raise InputError(f"{path} cannot be read as an image: {error}.") from error


def _bytes(image: Image, path: Path) -> NDArray[np.uint8]:
    if image.mode[0] in "IF":
        raise InputError(f"{path} has more than 8 bits per pixel; convert it, or give the data as an .npz of floats.")
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L"))[None]
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def _size(picture: NDArray[np.uint8]) -> str:
    return f"{picture.shape[2]} x {picture.shape[1]}"
