"""The `[data]` table of an experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedlag.errors import InputError, unknown

SPLITS = {
    "dirichlet": "each class shared out by a Dirichlet draw: label skew, unequal sizes (the paper's)",
    "iid": "a random permutation in equal shares",
    "replacement": "each client's label mix a Dirichlet draw: equal sizes, rows drawn with replacement",
    "classes": "the same number of classes for every client",
    "given": "from a file of row numbers, or as the data themselves say",
}


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which data, and how they are divided: among clients, then into each client's train, validation and test rows.

    name: a known data set, or a path to your own. root: a folder with the official files; None downloads them.
    alpha: Dirichlet concentration (dirichlet, replacement); small is skewed. classes_per_client: for `classes`.
    file: row numbers per client, for `given`. minimum: the fewest rows a client may hold.
    limit: use only this many rows, drawn at random. validation, test: shares of each client's rows.
    seed: fixes limit, partition and division; training has its own.
    """

    name: str = "digits"
    root: str | None = None
    clients: int = 20
    split: str = "dirichlet"
    alpha: float = 0.1
    classes_per_client: int = 2
    file: str | None = None
    minimum: int = 10
    limit: int | None = None
    validation: float = 0.15
    test: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("name", _text(self.name), "the name of a data set or a path")
        self._require("root", self.root is None or _text(self.root), "the path of a folder")
        self._require("clients", _whole(self.clients, 1), "a whole number from 1")
        self._require("split", _text(self.split), f"one of {', '.join(SPLITS)}")
        if self.split not in SPLITS:
            raise unknown("data.split", self.split, SPLITS)
        self._require("alpha", _number(self.alpha) and 0 < self.alpha < math.inf, "a finite number greater than 0")
        self._require("classes_per_client", _whole(self.classes_per_client, 1), "a whole number from 1")
        self._require("file", self.file is None or _text(self.file), "the path of a .json or .npz file")
        self._require(
            "minimum",
            _whole(self.minimum, 3),
            "a whole number from 3 (one row each to train, validate and test)",
        )
        self._require("limit", self.limit is None or _whole(self.limit, 1), "a whole number from 1")
        for key in ("validation", "test"):
            share = getattr(self, key)
            self._require(key, _number(share) and 0 < share < 1, "a share between 0 and 1, both excluded")
        self._require("seed", _whole(self.seed, 0) and self.seed < 2**32, "a whole number from 0 to 4294967295")
        if self.validation + self.test >= 1:
            raise InputError(
                f"data.validation and data.test are {self.validation} and {self.test}, which leaves nothing to train "
                "on; together they must be less than 1."
            )
        if self.file is not None and self.split != "given":
            raise InputError(
                f'data.file is {self.file!r}, but data.split is {self.split!r}; a file is only read when it is "given".'
            )

    def _require(self, key: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise InputError(f"data.{key} must be {allowed}; {getattr(self, key)!r} was given.")


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
