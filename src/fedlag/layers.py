"""What a layer is: the parts of a model that become personal, or stay shared, together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from torch import nn

from fedlag import check, tree
from fedlag.errors import InputError
from fedlag.net import Model

NORMALISATION = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
UNITS = ("module", "tensor")
NORM_POLICIES = ("attach", "share", "local", "candidate")

Unit = str | Mapping[str, str]  # "module", "tensor", or your own groups: name -> pattern of parameter names


class Module(NamedTuple):
    """A module that directly owns parameters or statistics."""

    parameters: tuple[str, ...]
    statistics: tuple[str, ...]
    normalises: bool


class Anatomy(NamedTuple):
    """What rules know of a model: its modules in registration order, and every name there is."""

    modules: tuple[Module, ...]
    names: tuple[str, ...]


class Layer(NamedTuple):
    """A candidate for personalisation: `scored` names decide, `attached` names follow."""

    name: str
    scored: tuple[str, ...]
    attached: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.scored + self.attached


def anatomy(model: Model, names: Iterable[str]) -> Anatomy:
    """The modules of a model; `names` are all parameters and statistics, the algorithm's additions included."""
    modules = []
    for prefix, module in model.net.named_modules():
        own = [f"{prefix}.{name}" for name, _ in module.named_parameters(recurse=False)]
        buffers = [f"{prefix}.{name}" for name, _ in module.named_buffers(recurse=False)]
        parameters = tuple(name for name in model.parameter_names if name in own)
        statistics = tuple(name for name in model.statistic_names if name in own or name in buffers)
        if parameters or statistics:
            modules.append(Module(parameters, statistics, isinstance(module, NORMALISATION)))
    return Anatomy(tuple(modules), tuple(names))


def without(anatomy: Anatomy, names: Collection[str]) -> Anatomy:
    """The anatomy of what remains when `names` are taken out."""

    def rest(all_names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in all_names if name not in names)

    modules = (Module(rest(m.parameters), rest(m.statistics), m.normalises) for m in anatomy.modules)
    return Anatomy(tuple(m for m in modules if m.parameters or m.statistics), rest(anatomy.names))


def normalisation(anatomy: Anatomy) -> frozenset[str]:
    """Every name that belongs to a normalisation layer."""
    return frozenset(name for m in anatomy.modules if m.normalises for name in m.parameters + m.statistics)


def group(anatomy: Anatomy, unit: Unit = "module", norm: str = "attach") -> tuple[Layer, ...]:
    """The candidate layers, in registration order: the first is closest to the input.

    norm: "attach" lets a normalisation layer follow the layer before it, "candidate" makes it a layer of its own,
    "share" and "local" leave it out (local ones are personal whatever the others do).
    """
    check.one_of("norm", norm, NORM_POLICIES)
    if isinstance(unit, Mapping):
        return _groups(anatomy, unit)
    check.one_of("unit", unit, UNITS)
    layers: list[Layer] = []
    owner: int | None = None  # the layer a following normalisation is attached to
    for module in anatomy.modules:
        if module.normalises and norm != "candidate":
            if norm == "attach" and owner is not None:
                layer = layers[owner]
                layers[owner] = layer._replace(attached=layer.attached + module.parameters + module.statistics)
        elif module.parameters:
            owner = len(layers)
            layers.extend(_candidates(module, unit))
    return tuple(layers)


def _candidates(module: Module, unit: str) -> list[Layer]:
    """One layer of the whole module, or one of each of its tensors; its own statistics follow the first."""
    if unit == "module":
        return [Layer(module.parameters[0].rpartition(".")[0], module.parameters, module.statistics)]
    first, *others = module.parameters
    return [Layer(first, (first,), module.statistics), *(Layer(name, (name,)) for name in others)]


def _groups(anatomy: Anatomy, groups: Mapping[str, str]) -> tuple[Layer, ...]:
    parameters = [name for module in anatomy.modules for name in module.parameters]
    statistics = [name for module in anatomy.modules for name in module.statistics]
    layers, taken = [], dict[str, str]()
    for group_name, pattern in groups.items():
        scored = tuple(name for name in parameters if name in tree.under(parameters, pattern))
        if not scored:
            raise InputError(f"The group {group_name!r} = {pattern!r} matches no parameter; there are {parameters}.")
        for name in scored:
            if name in taken:
                raise InputError(f"{name!r} is in two groups, {taken[name]!r} and {group_name!r}; a layer has one.")
            taken[name] = group_name
        attached = tuple(name for name in statistics if name in tree.under(statistics, pattern))
        layers.append(Layer(group_name, scored, attached))
    return tuple(sorted(layers, key=lambda layer: parameters.index(layer.scored[0])))
