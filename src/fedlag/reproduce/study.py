"""What an experiment of the paper consists of, at a scale: rows of methods by columns of data, over seeds."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from fedlag import algorithms, check
from fedlag.config import Table, make_dataclass, make_kind
from fedlag.errors import unknown
from fedlag.experiment import Experiment, experiment, reseeded, settings, understood
from fedlag.personal import Rule

FOLDER = files("fedlag.reproduce") / "experiments"
SCALES = ("smoke", "laptop", "paper")
COMMON = "scales.toml"  # settings and columns that experiments share


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large an experiment is.

    columns: names of the columns that `scales.toml` describes. at: settings each column is repeated with. rows: in
    place of the study's own. seeds: of the columns that are named, one of the others. workers: processes at once.
    takes: how long, and how that is known. cut: what is smaller than in the paper. also: programs that belong to it,
    "toy" and "lemma", with the number of their rounds.
    """

    columns: tuple[str, ...] = ()
    at: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, Any] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    workers: int | None = None
    takes: str
    cut: str = ""
    also: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the paper leads one to expect: that each of `higher` is above its partner in `lower`, or close to it.

    of: whether rows or columns are meant. within: points they may differ by and still be close; None asks for more.
    """

    that: str
    higher: tuple[str, ...]
    lower: tuple[str, ...]
    of: str = "rows"
    within: float | None = None

    def __post_init__(self) -> None:
        check.one_of("expect.of", self.of, ("rows", "columns"))
        check.require(len(self.higher) == len(self.lower), "expect.lower", self.lower, "as long as expect.higher")


@dataclass(frozen=True, kw_only=True)
class Study:
    """One experiment, as its file says.

    item: where it stands in the paper. asks, says: the question, and the paper's answer. printed: the file of the
    paper's numbers. methods: rows that are a method each.
    """

    title: str
    item: str
    asks: str
    says: str
    measure: str = "accuracy"
    printed: str | None = None
    figures: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    rows: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    expect: tuple[Expectation, ...] = ()
    smoke: Scale
    laptop: Scale
    paper: Scale


class Column(NamedTuple):
    """Data that all rows share."""

    printed: str  # the paper's column it stands beside
    settings: Table
    seeds: int


class Plan(NamedTuple):
    """A study at a scale, ready to run."""

    name: str
    study: Study
    scale: str
    rows: dict[str, Table]
    columns: dict[str, Column]
    overrides: tuple[str, ...]
    experiments: dict[tuple[str, str], list[Experiment]]  # (row, column) -> one for each seed

    @property
    def size(self) -> Scale:
        size: Scale = getattr(self.study, self.scale)
        return size


def names() -> list[str]:
    """E1, E2, …"""
    found = [file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.startswith("E")]
    return sorted(found, key=lambda name: int(name[1:]))


def load(name: str) -> Study:
    """A study by name, or from a file of one's own."""
    if name in names():
        table = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    elif name.endswith(".toml"):
        table = settings(Path(name))
    else:
        raise unknown("experiment", name, names())
    return make_dataclass(Study, table, "")  # type: ignore[no-any-return]


def plan(
    name: str,
    scale: str,
    overrides: Sequence[str] = (),
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: int | None = None,
) -> Plan:
    """What to run. Overrides such as `rounds=10` go before the rows' own settings; rows and columns choose some."""
    check.one_of("scale", scale, SCALES)
    study = load(name)
    size: Scale = getattr(study, scale)
    common = tomllib.loads((FOLDER / COMMON).read_text(encoding="utf-8"))[scale]
    base = merge(common["settings"], study.settings, size.settings)
    own = dict(size.rows) or {**{method: {"algorithm": method} for method in study.methods}, **study.rows}
    made = {
        column: one._replace(settings=settings(merge(base, one.settings), *overrides), seeds=seeds or one.seeds)
        for column, one in _columns(size, common["columns"]).items()
    }
    chosen_rows, chosen_columns = _choose("row", own, rows), _choose("column", made, columns)
    experiments = {
        (row, column): [reseeded(_cell(row, changes, shared.settings), seed) for seed in range(shared.seeds)]
        for column, shared in chosen_columns.items()
        for row, changes in chosen_rows.items()
    }
    return Plan(Path(name).stem, study, scale, chosen_rows, chosen_columns, tuple(overrides), experiments)


def merge(*tables: Mapping[str, Any]) -> Table:
    """Tables into one, the later above the earlier, at every depth."""
    made: Table = {}
    for table in tables:
        for key, value in table.items():
            deeper = isinstance(value, Mapping) and isinstance(made.get(key), Mapping)
            made[key] = merge(made[key], value) if deeper else value
    return made


def _columns(size: Scale, known: Mapping[str, Any]) -> dict[str, Column]:
    """The scale's columns, each at each of its further settings."""
    made = {}
    for name in size.columns:
        if name not in known:
            raise unknown("column", name, known)
        own = dict(known[name])
        printed = own.pop("printed", name)
        for at, changes in size.at.items() or [("", {})]:
            suffix = f", {at}" if at else ""
            made[name + suffix] = Column(printed + suffix, merge(own, changes), size.seeds.get(name, 1))
    return made


def _cell(row: str, changes: Mapping[str, Any], shared: Table) -> Experiment:
    """Shared `[personal]` settings reach the rules that know them; the row's own always do."""
    given = merge(shared, {key: value for key, value in changes.items() if key != "personal"})
    own = changes.get("personal", {})
    rule = make_kind(Rule, own, "personal") if "kind" in own else algorithms.find(_method(given))().personal
    return experiment({**given, "label": row, "personal": understood(rule, shared.get("personal", {})) | own})


def _method(given: Table) -> str:
    algorithm = given.get("algorithm", "fedavg")
    return str(algorithm if isinstance(algorithm, str) else algorithm.get("name", "fedavg"))


def _choose(kind: str, known: dict[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    for name in wanted:
        if name not in known:
            raise unknown(kind, name, known)
    return {name: value for name, value in known.items() if not wanted or name in wanted}
