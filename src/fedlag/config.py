"""Plain tables (as TOML gives them) to frozen dataclasses, strictly, and back."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedlag.aggregate import (
    Aggregator,
    CAGrad,
    Extrapolated,
    GradDrop,
    Mean,
    Median,
    MultiKrum,
    Nova,
    PCGrad,
    Reported,
    TrimmedMean,
)
from fedlag.errors import InputError, unknown
from fedlag.lag import LAG
from fedlag.official import Official
from fedlag.optim import SGD, Adagrad, Adam, Flash, Optimizer, Yogi
from fedlag.personal import BatchNorms, First, Last, Middle, Named, Nothing, RandomLayers, Rule, WarmStart

Table = dict[str, Any]

# Where a setting may be one of several things, the key `kind` says which.
KINDS: dict[Any, dict[str, type]] = {
    Optimizer: {"sgd": SGD, "adam": Adam, "yogi": Yogi, "adagrad": Adagrad, "flash": Flash},
    Aggregator: {
        "mean": Mean,
        "nova": Nova,
        "extrapolated": Extrapolated,
        "median": Median,
        "trimmed-mean": TrimmedMean,
        "multikrum": MultiKrum,
        "pcgrad": PCGrad,
        "graddrop": GradDrop,
        "cagrad": CAGrad,
        "reported": Reported,
    },
    Rule: {
        "nothing": Nothing,
        "named": Named,
        "batchnorms": BatchNorms,
        "first": First,
        "last": Last,
        "middle": Middle,
        "random": RandomLayers,
        "warmstart": WarmStart,
        "official": Official,
        "lag": LAG,
    },
}


def make(hint: Any, value: Any, where: str) -> Any:
    """The value as the annotated type wants it; `where` is its dotted name in messages."""
    if hint in KINDS:
        return make_kind(hint, value, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return make_dataclass(hint, value, where)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _make_one_of(inner, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(make(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {str(key): make(inner[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Any or (isinstance(hint, type) and type(value) is hint):
        return value
    raise InputError(f"{where} = {value!r} is not allowed; it must be {_name(hint)}.")


def make_dataclass(factory: Callable[..., Any], table: Any, where: str, **fixed: Any) -> Any:
    """Build a dataclass (or a partial of one) from a table; unknown keys and bad values are errors."""
    cls = class_of(factory)
    if isinstance(table, cls):
        return table
    if not isinstance(table, Mapping):
        raise InputError(f"{where} = {table!r} is not allowed; it must be a table of settings.")
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.init and field.name not in fixed]
    prefix = f"{where}." if where else ""
    for key in table:
        if key not in names:
            raise unknown("setting", f"{prefix}{key}", [f"{prefix}{name}" for name in names])
    values = {}
    for key, value in table.items():
        given = _completed(value, factory, key, fixed) if hints[key] in KINDS else value
        values[key] = make(hints[key], given, f"{prefix}{key}")
    try:
        return factory(**values, **fixed)
    except InputError as error:
        raise _placed(error, where, names) from error
    except TypeError as error:
        raise InputError(f"{where}: {error}") from error


def _completed(value: Any, factory: Callable[..., Any], field: str, fixed: Mapping[str, Any]) -> Any:
    """A table without a kind changes settings of what the field is by default."""
    if not isinstance(value, Mapping) or "kind" in value:
        return value
    return {**table(getattr(factory(**fixed), field)), **value}


def _placed(error: InputError, where: str, names: list[str]) -> InputError:
    """The same sentence, saying of which table it speaks."""
    sentence = str(error)
    if not where or sentence.startswith(where):
        return error
    starts_with_key = any(sentence.startswith(f"{name} = ") for name in names)
    return InputError(f"{where}{'.' if starts_with_key else ': '}{sentence}")


def make_kind(hint: Any, value: Any, where: str, default: str | None = None) -> Any:
    """One of several dataclasses: a name, or a table whose `kind` is the name."""
    if isinstance(value, tuple(KINDS[hint].values())):
        return value
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        raise InputError(f"{where} = {value!r} is not allowed; it must be a name or a table with the key 'kind'.")
    kind = table.get("kind", default)
    if kind not in KINDS[hint]:
        raise unknown(f"{where}.kind", str(kind), KINDS[hint])
    settings = {key: item for key, item in table.items() if key != "kind"}
    return make_dataclass(KINDS[hint][kind], settings, where)


def table(value: Any) -> Any:
    """The inverse of `make`: plain tables, lists and values; settings that are None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        settings = {name: table(item) for name, item in fields.items() if item is not None}
        kind = next((name for kinds in KINDS.values() for name, cls in kinds.items() if type(value) is cls), None)
        return settings if kind is None else {"kind": kind, **settings}
    if isinstance(value, Mapping):
        return {key: table(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [table(item) for item in value]
    return value


def flat(table: Mapping[str, Any], before: str = "") -> Table:
    """A plain table as one level of dotted keys; what is listed becomes JSON text."""
    made: Table = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            made |= flat(value, f"{before}{key}.")
        else:
            made[before + key] = json.dumps(value) if isinstance(value, list) else value
    return made


def class_of(factory: Callable[..., Any]) -> type:
    """The dataclass behind a class or a partial of one."""
    while isinstance(factory, partial):
        factory = factory.func
    if not (isinstance(factory, type) and dataclasses.is_dataclass(factory)):
        raise TypeError(f"{factory!r} is not a dataclass")
    return factory


def _make_one_of(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and types.NoneType in options:
        return None
    candidates = [option for option in options if option is not types.NoneType]
    for option in candidates:
        try:
            return make(option, value, where)
        except InputError as error:
            if len(candidates) == 1:
                raise error from None
    raise InputError(f"{where} = {value!r} is not allowed; it must be {' or '.join(map(_name, candidates))}.")


def _name(hint: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    if hint in words:
        return words[hint]
    origin = typing.get_origin(hint)
    return {tuple: "a list", dict: "a table", Mapping: "a table"}.get(origin, getattr(hint, "__name__", str(hint)))
