"""The data sets that are known by name.

All digests are those of the official files: of the archives as published (`Download`) and of what they hold (`Piece`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from fedlag.data import formats, official, own
from fedlag.data.dataset import Dataset, from_numpy
from fedlag.data.download import Download, cache, fetch
from fedlag.data.official import Piece, Source
from fedlag.errors import InputError, unknown

__all__ = ["SOURCES", "Dataset", "load"]


def load(name: str, root: str | Path | None = None) -> Dataset:
    """A known data set, its official train and test splits merged into one pool; or your own, by its path.

    root, or else the environment variable FEDLAG_DATA, is a folder that holds the files, and then nothing is
    downloaded; without either they are downloaded once into a cache.
    """
    source = SOURCES.get(name)
    if source is None:
        if own.is_path(name):
            return own.load(Path(name))
        raise unknown("data set", name, SOURCES)
    if name == "digits":
        return _digits()
    given = root or os.environ.get("FEDLAG_DATA")
    folder = Path(given).expanduser() if given else _downloaded(name, source)
    pool = official.read(source, folder)
    if pool is None:
        raise _missing(name, source, folder)
    return from_numpy(name, *pool, source.classes)


def _digits() -> Dataset:
    with (files("fedlag.data") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        dataset = from_numpy("digits", arrays["x"][:, None], arrays["y"], 10)
    return replace(dataset, scale=1 / 8)  # its pixels are 0..16


def _downloaded(name: str, source: Source) -> Path:
    if not source.downloads:
        raise InputError(
            f"{name} cannot be downloaded; put {_repacked(source)} into a folder and name that in data.root or "
            "FEDLAG_DATA."
        )
    for download in source.downloads:
        fetch(download, cache() / source.folders[0])
    return cache()


def _missing(name: str, source: Source, folder: Path) -> InputError:
    part = f"{name}_part"
    if part in SOURCES and official.is_repacked(SOURCES[part], folder):
        return InputError(
            f"{folder} holds only a part of {name}, {SOURCES[part].size:,} of its {source.size:,} images; to use that, "
            f"ask for {part}."
        )
    wanted = [", ".join(download.name for download in source.downloads), _repacked(source)]
    return InputError(
        f"No {name} in {folder}: looked there{_usual(source)} for {' or '.join(filter(None, wanted))}; put the "
        f"files there or name another folder in data.root or FEDLAG_DATA{_network(source)}."
    )


def _usual(source: Source) -> str:
    return f" and in its {', '.join(source.folders)}" if source.folders else ""


def _network(source: Source) -> str:
    return " (with neither set they are downloaded)" if source.downloads else ""


def _repacked(source: Source) -> str:
    names = [piece.repacked for piece in source.pieces]
    return " and ".join(name for name in names if name) if all(names) else ""


def _idx(base: str, *downloads: tuple[str, int, str]) -> tuple[Download, ...]:
    return tuple(Download(f"{base}/{name}-ubyte.gz", size, sha256) for name, size, sha256 in downloads)


TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

MNIST = Source(
    description="handwritten digits, 28 x 28 grey",
    classes=10,
    shape=(28, 28),
    pieces=(
        Piece(
            60_000,
            TRAIN,
            "mnist_train.npz",
            "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        ),
        Piece(
            10_000,
            TEST,
            "mnist_test.npz",
            "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        ),
    ),
    downloads=_idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        ("train-images-idx3", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    folders=("mnist", "MNIST/raw", "MNIST"),
)

FASHION_MNIST = Source(
    description="clothes, 28 x 28 grey",
    classes=10,
    shape=(28, 28),
    pieces=(
        Piece(
            60_000,
            TRAIN,
            "fashion_mnist_train.npz",
            "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        ),
        Piece(
            10_000,
            TEST,
            "fashion_mnist_test.npz",
            "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        ),
    ),
    downloads=_idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ("train-images-idx3", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        ("train-labels-idx1", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        ("t10k-images-idx3", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        ("t10k-labels-idx1", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    folders=("fashion_mnist", "FashionMNIST/raw", "FashionMNIST", "fashion-mnist"),
)


def _emnist(split: str, description: str, classes: int, train: int, test: int) -> Source:
    def piece(part: str, size: int) -> Piece:
        return Piece(size, (f"emnist-{split}-{part}-images-idx3-ubyte", f"emnist-{split}-{part}-labels-idx1-ubyte"))

    return Source(
        description=description,
        classes=classes,
        shape=(28, 28),
        pieces=(piece("train", train), piece("test", test)),
        downloads=(
            Download(
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                561_753_746,
                "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
            ),
        ),
        folders=("emnist", "EMNIST/raw", "EMNIST", "gzip"),
        transposed=True,
    )


CIFAR10 = Source(
    description="photographs of animals and vehicles, 32 x 32 colour",
    classes=10,
    shape=(32, 32, 3),
    pieces=(
        Piece(
            50_000,
            tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            "cifar10_train.npz",
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        ),
        Piece(
            10_000,
            ("test_batch.bin",),
            "cifar10_test.npz",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
    ),
    decode=formats.cifar10,
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    folders=("cifar10", "cifar-10-batches-bin"),
)

CIFAR100_TEST = Piece(
    10_000,
    ("test.bin",),
    "cifar100_test.npz",
    "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
    "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
)

CIFAR100 = Source(
    description="photographs, 32 x 32 colour, fine labels",
    classes=100,
    shape=(32, 32, 3),
    pieces=(Piece(50_000, ("train.bin",)), CIFAR100_TEST),
    decode=formats.cifar100,
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    folders=("cifar100", "cifar-100-binary"),
)

CIFAR100_PART = replace(
    CIFAR100,
    description="300 training images per class of CIFAR-100 and its test split; not comparable with CIFAR-100",
    pieces=(
        Piece(
            30_000,
            (),
            "cifar100_train.npz",
            "38de6b04d944cf2b3386c7f3aa27497e4c4b9ca901f7732ed05d4960d39beb4f",
            "609e8045f82e40e14d27da27b9ca0342e11b464efcc3e840e73909e02fc08f2e",
        ),
        CIFAR100_TEST._replace(files=()),
    ),
    downloads=(),
    folders=(),
)

EMNIST_BALANCED = _emnist(
    "balanced", "handwritten digits and letters, 28 x 28 grey, equal classes", 47, 112_800, 18_800
)

EMNIST_BALANCED_PART = replace(
    EMNIST_BALANCED,
    description="the first images of EMNIST balanced's test split; not comparable with EMNIST",
    pieces=(
        Piece(
            14_246,
            (),
            "emnist_balanced_test_part.npz",
            "3e508535c8dfb1562c67dcd0767922f9d8403f53a1e727d0d5fe4d19b6c1f1f7",
            "81568f1a73c3d0c274ed9a65123c0f986a5f51a824270c2f3d1c4fd9050b43ba",
        ),
    ),
    downloads=(),
    folders=(),
)

SOURCES = {
    "digits": Source("handwritten digits, 8 x 8 grey; comes with fedlag", 10, (8, 8), (Piece(1_797),)),
    "mnist": MNIST,
    "fashion_mnist": FASHION_MNIST,
    "emnist_byclass": _emnist("byclass", "handwritten digits and letters, 28 x 28 grey", 62, 697_932, 116_323),
    "emnist_balanced": EMNIST_BALANCED,
    "emnist_balanced_part": EMNIST_BALANCED_PART,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "cifar100_part": CIFAR100_PART,
}
"""Every known data set by name; `fedlag list data` prints them."""
