"""Checks at the door: each refuses a value with one sentence that names it and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Collection

from fedlag.errors import InputError


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise InputError(f"{name} = {value!r} is not allowed; it must be {allowed}.")


def number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def positive(name: str, value: float) -> None:
    require(number(value) and value > 0, name, value, "a number above 0")


def not_negative(name: str, value: float) -> None:
    require(number(value) and value >= 0, name, value, "a number from 0 upwards")


def share(name: str, value: float) -> None:
    require(number(value) and 0 <= value < 1, name, value, "a number from 0 to below 1")


def fraction(name: str, value: float) -> None:
    require(number(value) and 0 <= value <= 1, name, value, "a number from 0 to 1")


def portion(name: str, value: float) -> None:
    require(number(value) and 0 < value <= 1, name, value, "above 0 and at most 1")


def minority(name: str, value: float) -> None:
    require(number(value) and 0 <= value < 0.5, name, value, "a number from 0 to below 0.5")


def threshold(name: str, value: float) -> None:
    """Of a cosine, below which two clients conflict."""
    require(number(value) and -1 < value <= 0, name, value, "above -1 and at most 0")


def count(name: str, value: int, least: int = 0) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= least, name, value, f"a whole number from {least} upwards")


def one_of(name: str, value: object, allowed: Collection[str]) -> None:
    require(value in allowed, name, value, "one of " + ", ".join(repr(choice) for choice in allowed))
