"""Which parameters stay home: rules, and the fixed ones among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedlag import check, layers, tree
from fedlag.divergence import Conflict
from fedlag.errors import InputError
from fedlag.flow import Local, Replies
from fedlag.layers import Anatomy, Layer
from fedlag.tree import Params

Names = frozenset[str]
NONE: Names = frozenset()


class Rule:
    """Decides, after every round, which names are personal.

    A rule says only *which*; since when a name has been so, who holds a valid copy and what a client that was away
    starts from are the round's business. A state is made of plain values, tuples, dicts and tensors.
    """

    def init(self, anatomy: Anatomy) -> Any:
        """The state before the first round."""
        return ()

    def update(self, state: Any, replies: Replies, round: int) -> tuple[Any, dict[str, Conflict]]:
        """The state after a round, from what moved in it; and what was measured, for looking at."""
        return state, {}

    def personal(self, state: Any) -> Names:
        """The names that are personal from now on."""
        return NONE

    def watched(self, state: Any) -> Names:
        """Personal names whose movement the server still wants to see."""
        return NONE

    def held(self, anatomy: Anatomy) -> Names:
        """Names that are personal in every round, whatever is measured: no other rule may choose them."""
        return NONE

    def reach(self, anatomy: Anatomy) -> Names:
        """Names that may be personal in some round: what a client must keep."""
        return self.held(anatomy)

    def witness(self, local: Local, end: Params) -> Params:
        """What every participant reports for the rule's sake besides its update, by parameter name."""
        return {}

    def __or__(self, other: Rule) -> Rule:
        return Union(self, other)


@dataclass(frozen=True)
class Union(Rule):
    """Personal by either rule. What one holds in every round, the other does not see."""

    left: Rule
    right: Rule

    @property
    def parts(self) -> tuple[Rule, ...]:
        """The rules that unions of unions are made of."""
        sides = (self.left, self.right)
        return tuple(part for side in sides for part in (side.parts if isinstance(side, Union) else (side,)))

    def init(self, anatomy: Anatomy) -> Any:
        free = layers.without(anatomy, self.held(anatomy))
        return tuple(part.init(anatomy if part.held(anatomy) else free) for part in self.parts)

    def update(self, state: Any, replies: Replies, round: int) -> tuple[Any, dict[str, Conflict]]:
        updated = [part.update(own, replies, round) for part, own in zip(self.parts, state, strict=True)]
        return tuple(own for own, _ in updated), {name: c for _, seen in updated for name, c in seen.items()}

    def personal(self, state: Any) -> Names:
        return NONE.union(*(part.personal(own) for part, own in zip(self.parts, state, strict=True)))

    def watched(self, state: Any) -> Names:
        return NONE.union(*(part.watched(own) for part, own in zip(self.parts, state, strict=True)))

    def held(self, anatomy: Anatomy) -> Names:
        return self.left.held(anatomy) | self.right.held(anatomy)

    def reach(self, anatomy: Anatomy) -> Names:
        return self.left.reach(anatomy) | self.right.reach(anatomy)

    def witness(self, local: Local, end: Params) -> Params:
        return {**self.left.witness(local, end), **self.right.witness(local, end)}


@dataclass(frozen=True)
class Nothing(Rule):
    """Everything is shared: FedAvg."""


class Fixed(NamedTuple):
    """State of a rule that never changes its mind."""

    names: tuple[str, ...]


class _FixedRule(Rule):
    def init(self, anatomy: Anatomy) -> Fixed:
        return Fixed(tuple(sorted(self.held(anatomy))))

    def personal(self, state: Fixed) -> Names:
        return frozenset(state.names)


@dataclass(frozen=True)
class Named(_FixedRule):
    """The parameters whose names match a pattern: `Named("head.*")`; `Named("*")` is training alone."""

    pattern: str

    def held(self, anatomy: Anatomy) -> Names:
        names = tree.under(anatomy.names, self.pattern)
        if not names:
            raise InputError(
                f"The pattern {self.pattern!r} matches no parameter of this model; "
                f"there are {', '.join(anatomy.names)}."
            )
        return names


@dataclass(frozen=True)
class First(_FixedRule):
    """The k layers closest to the input."""

    k: int = 2

    def __post_init__(self) -> None:
        check.count("k", self.k)

    def held(self, anatomy: Anatomy) -> Names:
        return _names(layers.group(anatomy)[: self.k])


@dataclass(frozen=True)
class Last(_FixedRule):
    """The k layers closest to the output."""

    k: int = 2

    def __post_init__(self) -> None:
        check.count("k", self.k)

    def held(self, anatomy: Anatomy) -> Names:
        candidates = layers.group(anatomy)
        return _names(candidates[max(0, len(candidates) - self.k) :])


@dataclass(frozen=True)
class Middle(_FixedRule):
    """The k layers in the middle, one nearer the input where they can't be centred."""

    k: int = 2

    def __post_init__(self) -> None:
        check.count("k", self.k)

    def held(self, anatomy: Anatomy) -> Names:
        candidates = layers.group(anatomy)
        first = max(0, (len(candidates) - self.k) // 2)
        return _names(candidates[first : first + self.k])


@dataclass(frozen=True)
class BatchNorms(_FixedRule):
    """Batch normalisation, parameters and statistics; nothing in a model that has none."""

    def held(self, anatomy: Anatomy) -> Names:
        return frozenset(
            name for m in anatomy.modules if m.normalises and m.statistics for name in m.parameters + m.statistics
        )


class Chosen(NamedTuple):
    """State of a rule that chooses among layers."""

    layers: tuple[Layer, ...]
    ages: dict[str, int]  # personal layer -> rounds it has been personal without interruption
    totals: dict[str, tuple[int, int, float]]  # layer -> conflicts, pairs, sum of mean cosines, while accumulating
    always: tuple[str, ...] = ()  # names personal in every round

    @property
    def names(self) -> Names:
        return _names(tuple(layer for layer in self.layers if layer.name in self.ages))


@dataclass(frozen=True, kw_only=True)
class RandomLayers(Rule):
    """k layers drawn anew after every round from `warmup` on: the control that asks whether the ranking matters."""

    k: int = 5
    warmup: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        check.count("k", self.k)
        check.count("warmup", self.warmup)

    def init(self, anatomy: Anatomy) -> Chosen:
        return Chosen(layers.group(anatomy), {}, {})

    def update(self, state: Chosen, replies: Replies, round: int) -> tuple[Chosen, dict[str, Conflict]]:
        if round < self.warmup:
            return state, {}
        generator = np.random.default_rng([self.seed, round])
        drawn = generator.permutation(len(state.layers))[: self.k]
        return state._replace(ages=aged(state.ages, [state.layers[i].name for i in sorted(drawn)])), {}

    def personal(self, state: Chosen) -> Names:
        return state.names

    def watched(self, state: Chosen) -> Names:
        return state.names

    def reach(self, anatomy: Anatomy) -> Names:
        return _names(layers.group(anatomy))


class Started(NamedTuple):
    names: tuple[str, ...]
    personal: bool


@dataclass(frozen=True, kw_only=True)
class WarmStart(Rule):
    """Nothing is personal in rounds 0 … warmup-1, everything from round `warmup` on: a warm start for training alone.

    This is what the published FedLAG code computes, so it stands beside every FedLAG result.
    """

    warmup: int = 30

    def __post_init__(self) -> None:
        check.count("warmup", self.warmup)

    def init(self, anatomy: Anatomy) -> Started:
        return Started(anatomy.names, self.warmup == 0)

    def update(self, state: Started, replies: Replies, round: int) -> tuple[Started, dict[str, Conflict]]:
        return state._replace(personal=round + 1 >= self.warmup), {}

    def personal(self, state: Started) -> Names:
        return frozenset(state.names) if state.personal else NONE

    def reach(self, anatomy: Anatomy) -> Names:
        return frozenset(anatomy.names)


def aged(ages: dict[str, int], chosen: list[str]) -> dict[str, int]:
    """Ages after a round in which `chosen` are personal: one more for those that stay, one for those that enter."""
    return {name: ages.get(name, 0) + 1 for name in chosen}


def _names(chosen: tuple[Layer, ...]) -> Names:
    return frozenset(name for layer in chosen for name in layer.names)
