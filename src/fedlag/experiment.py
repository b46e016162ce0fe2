"""An experiment: everything that determines a run's results, read from TOML and checked once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedlag import algorithms, check, device, store
from fedlag.algorithm import Algorithm, Training
from fedlag.config import KINDS, Table, class_of, make_dataclass, make_kind, table
from fedlag.data.settings import Data
from fedlag.errors import InputError, unknown
from fedlag.federation.choice import NAMES as FEDERATIONS
from fedlag.lag import LAG
from fedlag.nets import choose
from fedlag.official import Official
from fedlag.optim import Optimizer
from fedlag.personal import Named, Nothing, RandomLayers, Rule, Union, WarmStart
from fedlag.run import Sampling
from fedlag.sinks import Log

RUNGS = ("local", "fedavg", "fedavg-ft")  # what every method has to beat


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The `[model]` table; what is None is the architecture's own default."""

    name: str = "mlp"
    norm: str | None = None
    hidden: tuple[int, ...] | None = None
    shortcut: str | None = None

    def __post_init__(self) -> None:
        choose(self.name, norm=self.norm, hidden=self.hidden, shortcut=self.shortcut)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The `[compare]` table: which methods stand side by side, over how many seeds.

    A method is a name, or a table with `name`, its own settings, and what it has for itself of `label`, `personal`,
    `training` and `trials`; "all" is every registered one at its defaults. What every comparison needs, see `controls`,
    comes of itself.
    """

    methods: tuple[Any, ...] | str = ("local", "fedavg", "fedavg-ft", "fedper", "warmstart", "fedlag")
    lag: Mapping[str, Any] | None = None  # settings of LAG, with which every method that can take it stands once more
    seeds: int = 5
    redraw: bool = True  # every seed also draws its own partition

    def __post_init__(self) -> None:
        check.count("compare.seeds", self.seeds, least=1)
        if isinstance(self.methods, str):
            check.one_of("compare.methods", self.methods, ("all",))

    def entries(self) -> list[Table]:
        """A table for each method, those with LAG last."""
        given = algorithms.REGISTRY if self.methods == "all" else self.methods
        bare = [_named(entry, "compare.methods") for entry in given]
        if self.lag is None:
            return bare
        able = [entry for entry in bare if "personal" not in entry and can_take_lag(entry.get("name", "fedavg"))]
        return bare + [
            {**entry, "label": f"{entry.get('label', entry['name'])}+lag", "personal": {"kind": "lag", **self.lag}}
            for entry in able
        ]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that determines a run's results."""

    algorithm: Algorithm
    method: str  # the registered name of the algorithm
    label: str = ""
    trials: int = 0  # runs made to choose these settings on validation data
    seed: int = 0  # of initial weights, sampling and shuffles; the partition has its own, data.seed
    rounds: int = 100
    evaluate_every: int = 1
    device: str = "cpu"  # where tensors live: "cpu", "cuda", "cuda:1"
    federation: str = "auto"  # how clients are trained on this machine
    store: str = "auto"  # where clients are kept between rounds: "memory", "disk", or by how much they keep; same bits
    data: Data = field(default_factory=Data)
    model: Architecture = field(default_factory=Architecture)
    training: Training = field(default_factory=Training)
    sampling: Sampling = field(default_factory=Sampling)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        check.count("seed", self.seed)
        check.count("trials", self.trials)
        check.count("rounds", self.rounds, least=1)
        check.count("evaluate_every", self.evaluate_every, least=1)
        device.refuse_unknown(self.device)
        check.one_of("federation", self.federation, FEDERATIONS)
        check.one_of("store", self.store, store.WHERE)

    @property
    def title(self) -> str:
        return self.label or self.method

    @property
    def hash(self) -> str:
        """Names the run: equal settings, equal hash, wherever the data lie and whatever is said of the run."""
        settings = {key: value for key, value in self.table().items() if key not in ("label", "trials", "store", "log")}
        settings["data"] = {key: value for key, value in settings["data"].items() if key != "root"}
        if self.device == "cpu":
            del settings["device"]  # only on other devices numbers come out otherwise
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The name of a run's directory."""
        return f"{self.title}-s{self.seed}-{self.hash}"

    def table(self) -> Table:
        """As TOML holds it, every default spelt out. Reading it back gives the same experiment."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        algorithm, training = own.pop("algorithm"), table(own.pop("training"))
        settings = {"name": own.pop("method"), **table(algorithm)}
        rules = settings.pop("personal")
        optimizer = training.pop("optimizer")
        return {
            **table(own),
            "algorithm": settings,
            "personal": [table(rule) for rule in flat(algorithm.personal)] if rules else [],
            "training": {**training, "optimizer": optimizer.pop("kind"), **optimizer},
        }

    def toml(self) -> str:
        return tomli_w.dumps(self.table())


def settings(source: Path | str | Mapping[str, Any], *overrides: str) -> Table:
    """The plain table of a TOML file (or of a table), changed by overrides such as `training.lr=0.1`."""
    made = dict(source) if isinstance(source, Mapping) else _file(Path(source))
    for override in overrides:
        made = _override(made, override)
    return made


def load(source: Path | str | Mapping[str, Any], *overrides: str) -> Experiment:
    """One experiment, checked."""
    return experiment(settings(source, *overrides))


def experiment(given: Mapping[str, Any]) -> Experiment:
    """Build and check an experiment from a table; `compare` and `tune` in it are left to others."""
    rest = {key: value for key, value in given.items() if key not in ("compare", "tune")}
    method = _named(rest.pop("algorithm", "fedavg"), "algorithm")
    name = method.pop("name", "fedavg")
    factory = algorithms.find(name)
    own = _rules(factory().personal, rest.pop("personal", {}))
    algorithm = make_dataclass(factory, method, "algorithm", personal=own)
    training = _training(rest.pop("training", {}))
    return make_dataclass(  # type: ignore[no-any-return]
        Experiment, rest, "", algorithm=algorithm, method=name, training=training
    )


def variants(base: Mapping[str, Any]) -> list[Experiment]:
    """One experiment for every method and seed of the `compare` table; all share data, model, sampling and training.

    Controls nobody asked for come last.
    """
    comparison = make_comparison(base)
    experiment(base)  # refuses what no method below would meet
    return [one for entry in [*comparison.entries(), *controls(base)] for one in over_seeds(base, entry, comparison)]


def controls(base: Mapping[str, Any]) -> list[Table]:
    """What a comparison lacks: training alone, FedAvg, fine-tuned FedAvg; beside LAG also the warm start that the
    published code computes, and layers drawn by lot, as many as LAG's and from the same round on.
    """
    comparison = make_comparison(base)
    asked = [over_seeds(base, entry, replace(comparison, seeds=1))[0] for entry in comparison.entries()]
    needed: list[Table] = [{"name": name} for name in RUNGS]
    lag = next((rule for one in asked for rule in flat(one.algorithm.personal) if isinstance(rule, LAG)), None)
    if lag:
        needed += [
            {"name": "warmstart", "personal": {"warmup": lag.warmup}},
            {"name": "random-layers", "personal": {"warmup": lag.warmup, "k": lag.k}},
        ]
    there = {one.title for one in asked}
    return [entry for entry in needed if entry["name"] not in there]


def make_comparison(base: Mapping[str, Any]) -> Comparison:
    return make_dataclass(Comparison, base.get("compare", {}), "compare")  # type: ignore[no-any-return]


def over_seeds(base: Mapping[str, Any], entry: Table, comparison: Comparison) -> list[Experiment]:
    """A method of the comparison, once for each seed."""
    method = dict(entry)
    own: Table = {key: method.pop(key) for key in ("label", "trials", "personal", "training") if key in method}
    rule = algorithms.find(method.get("name", "fedavg"))().personal
    shared = {"personal": understood(rule, base.get("personal", {}))}
    training = {**base.get("training", {}), **own.pop("training", {})}
    one = experiment({**base, **shared, **own, "algorithm": method, "training": training})
    return [reseeded(one, seed, comparison.redraw) for seed in range(comparison.seeds)]


def reseeded(one: Experiment, by: int, redraw: bool = True) -> Experiment:
    """The same with other weights, shuffles, cohorts and lots, and with another partition if `redraw`."""
    data = replace(one.data, seed=one.data.seed + by) if redraw else one.data
    algorithm = replace(one.algorithm, personal=_redrawn(one.algorithm.personal, by))
    return replace(one, seed=one.seed + by, data=data, algorithm=algorithm)


def _redrawn(rule: Rule, seed: int) -> Rule:
    """The same rule; what it draws by lot it draws anew for every seed."""
    if isinstance(rule, Union):
        return Union(_redrawn(rule.left, seed), _redrawn(rule.right, seed))
    return replace(rule, seed=rule.seed + seed) if isinstance(rule, RandomLayers) else rule


def flat(rule: Rule) -> list[Rule]:
    """The rules a rule is made of, without those that do nothing."""
    parts = rule.parts if isinstance(rule, Union) else (rule,)
    return [part for part in parts if not isinstance(part, Nothing)]


def _rules(own: Rule, given: Any) -> Rule:
    """The algorithm's own rule as changed by the `[personal]` table, or by a list of such tables.

    Settings of a rule the algorithm has change that rule; any other rule is added. Without a `kind`, settings belong
    to the algorithm's rule that knows them all, else to LAG.
    """
    rules = flat(own)
    for entry in given if isinstance(given, list) else [given] if given else []:
        settings = {"kind": entry} if isinstance(entry, str) else dict(entry)
        kinds = KINDS[Rule]
        if "kind" in settings and settings["kind"] not in kinds:
            raise unknown("personal.kind", str(settings["kind"]), kinds)
        fitting = [
            place
            for place, rule in enumerate(rules)
            if (type(rule) is kinds[settings["kind"]] if "kind" in settings else settings.keys() <= _settings(rule))
        ]
        if fitting:
            kind = next(name for name, cls in kinds.items() if cls is type(rules[fitting[0]]))
            changed = {**table(rules[fitting[0]]), **settings, "kind": kind}
            rules[fitting[0]] = make_kind(Rule, changed, "personal")
        else:
            rules.append(make_kind(Rule, settings, "personal", default="lag"))
    made: Rule = Nothing()
    for rule in rules:
        made = rule if isinstance(made, Nothing) else made | rule
    return made


def can_take_lag(name: str) -> bool:
    """Whether the method averages something and leaves it to another rule what of it stays personal."""
    algorithm = algorithms.find(name)()
    decided = any(
        isinstance(rule, LAG | Official | RandomLayers | WarmStart) or rule == Named("*")
        for rule in flat(algorithm.personal)
    )
    return bool(algorithm.averages) and not algorithm.pooled and not decided


def understood(rule: Rule, given: Any) -> Any:
    """Of shared `[personal]` settings, those that the method's own rules know."""
    if not isinstance(given, Mapping):
        return given
    known = set[str]().union(*(_settings(own) for own in flat(rule)))
    return {key: value for key, value in given.items() if key in known}


def _settings(rule: Rule) -> set[str]:
    return {f.name for f in dataclasses.fields(rule)}  # type: ignore[arg-type]


def _training(given: Any) -> Training:
    """The `[training]` table: the optimiser is named, and its settings stand beside the others."""
    if not isinstance(given, Mapping):
        raise InputError(f"training = {given!r} is not allowed; it must be a table of settings.")
    kind = given.get("optimizer", "sgd")
    if kind not in KINDS[Optimizer]:
        raise unknown("training.optimizer", str(kind), KINDS[Optimizer])
    optimizer = KINDS[Optimizer][kind]
    theirs = {f.name for f in dataclasses.fields(class_of(optimizer))}
    ours = {f.name for f in dataclasses.fields(Training)} - {"optimizer"}
    for key in given:
        if key not in theirs | ours | {"optimizer"}:
            raise unknown("setting", f"training.{key}", [f"training.{name}" for name in (*ours, *theirs, "optimizer")])
    settings = {key: value for key, value in given.items() if key in theirs}
    rest = {key: value for key, value in given.items() if key in ours}
    made = make_dataclass(optimizer, settings, "training")
    return make_dataclass(Training, rest, "training", optimizer=made)  # type: ignore[no-any-return]


def _named(value: Any, where: str) -> Table:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping):
        return dict(value)
    raise InputError(f"{where} = {value!r} is not allowed; it must be a method's name or a table with the key 'name'.")


def _file(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The experiment file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"The experiment file {path} is not valid TOML: {error}.") from error


def _override(settings: Table, override: str) -> Table:
    """Set a dotted key, `data.alpha=0.5`; the value is TOML, or text where it isn't."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{override!r} is not an override; write key=value, for example training.lr=0.1.")
    return change(settings, key, typed(text))


def typed(text: str) -> Any:
    """What somebody typed for a setting: TOML, or text where it isn't."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def change(settings: Mapping[str, Any], key: str, value: Any) -> Table:
    """The settings with a dotted key, `data.alpha`, set to a value."""
    return _set(settings, key.strip().split("."), value, key)


def _set(settings: Any, path: Iterable[str], value: Any, key: str) -> Table:
    first, *rest = path
    if isinstance(settings, list) and settings:  # [[personal]]: the rule listed last
        return [*settings[:-1], _set(settings[-1], path, value, key)]  # type: ignore[return-value]
    if isinstance(settings, str):
        settings = {"name": settings}
    if not isinstance(settings, Mapping):
        raise InputError(f"The override {key!r} goes below a single value.")
    return {**settings, first: _set(settings.get(first, {}), rest, value, key) if rest else value}
