"""LAG: layers on which clients conflict stay personal.

Nguyen et al., Towards Layer-wise Personalized Federated Learning: Adaptive Layer Disentanglement via Conflicting
Gradients.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fedlag import check, layers
from fedlag.divergence import Conflict, conflict, gram
from fedlag.errors import InputError
from fedlag.flow import Replies
from fedlag.layers import Anatomy, Layer, Unit
from fedlag.personal import NONE, Chosen, Names, Rule, aged

log = logging.getLogger(__name__)

MODES = ("dynamic", "frozen")


@dataclass(frozen=True, kw_only=True)
class LAG(Rule):
    """After each round the k layers with most conflicting client pairs stay home; all others are averaged.

    dynamic: chosen anew after every round from `warmup` on, from the updates of that round.
    frozen: conflicts are added up over rounds 0 … warmup-1, the k worst layers then stay personal for good, and
    nothing of them is sent either way.
    """

    k: int = 5  # at most this many layers
    xi: float = 0.0  # a pair conflicts when its cosine is below
    warmup: int = 30  # rounds in which nothing is personal
    mode: str = "dynamic"
    unit: Unit = "module"
    norm: str = "attach"
    min_ratio: float = 0.0  # a layer needs more than this share of all pairs in conflict
    hold: int = 0  # rounds a layer stays once it has entered

    def __post_init__(self) -> None:
        check.count("k", self.k)
        check.threshold("xi", self.xi)
        check.count("warmup", self.warmup)
        check.one_of("mode", self.mode, MODES)
        if isinstance(self.unit, str):
            check.one_of("unit", self.unit, layers.UNITS)
        check.one_of("norm", self.norm, layers.NORM_POLICIES)
        check.share("min_ratio", self.min_ratio)
        check.count("hold", self.hold)
        if self.mode == "frozen" and self.warmup == 0:
            raise InputError('mode = "frozen" chooses from the rounds of the warm-up, so warmup must be at least 1.')

    def init(self, anatomy: Anatomy) -> Chosen:
        candidates = layers.group(anatomy, self.unit, self.norm)
        if self.k and not candidates:
            log.warning("LAG finds no layer to choose from: everything is personal already, so it changes nothing.")
        return Chosen(candidates, {}, {}, tuple(sorted(self.held(anatomy))))

    def update(self, state: Chosen, replies: Replies, round: int) -> tuple[Chosen, dict[str, Conflict]]:
        frozen = self.mode == "frozen"
        measures = len(replies.ids) > 1 and not (frozen and round >= self.warmup)
        conflicts = {
            layer.name: measure(layer, replies, self.xi)
            for layer in state.layers
            if measures and replies.update.keys() >= set(layer.scored)  # another rule may keep it to the clients
        }
        seen = {name: (c.count, c.pairs, c.mean_cosine) for name, c in conflicts.items()}
        if frozen:
            seen = state.totals | {name: _plus(state.totals.get(name, (0, 0, 0.0)), new) for name, new in seen.items()}
            state = state._replace(totals=seen)
        if round >= self.warmup - 1 if frozen else measures and round >= self.warmup:
            state = state._replace(ages=aged(state.ages, self.choose(seen, state.ages)))
        return state, conflicts

    def choose(self, seen: dict[str, tuple[int, int, float]], ages: dict[str, int]) -> list[str]:
        """At most k layers by (conflicts, most first; mean cosine, lowest first; order in the model)."""
        ranked = sorted(seen, key=lambda name: (-seen[name][0], seen[name][2]))  # stable: ties go to the earlier layer
        eligible = [name for name in ranked if seen[name][0] > self.min_ratio * seen[name][1]]
        staying = [name for name in seen if 0 < ages.get(name, 0) < self.hold]
        return (staying + [name for name in eligible if name not in staying])[: self.k]

    def personal(self, state: Chosen) -> Names:
        return state.names | frozenset(state.always)

    def watched(self, state: Chosen) -> Names:
        return NONE if self.mode == "frozen" else state.names

    def held(self, anatomy: Anatomy) -> Names:
        return layers.normalisation(anatomy) if self.norm == "local" else NONE

    def reach(self, anatomy: Anatomy) -> Names:
        candidates = layers.group(anatomy, self.unit, self.norm)
        return self.held(anatomy) | {name for layer in candidates for name in layer.names}


def measure(layer: Layer, replies: Replies, xi: float) -> Conflict:
    """How the clients' updates of one layer conflict."""
    return conflict(gram(replies.update[name] for name in layer.scored), xi)


def _plus(a: tuple[int, int, float], b: tuple[int, int, float]) -> tuple[int, int, float]:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]
