"""What the published FedLAG code does, as its files are and not as its paper says.

Kept to compare with: see also `WarmStart`, which it equals, and `LAG`, which does what the paper says.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from torch.nn import functional

from fedlag import check, layers, tree
from fedlag.divergence import Conflict, conflict, gram
from fedlag.flow import Local, Replies
from fedlag.layers import Anatomy, Layer
from fedlag.personal import NONE, Names, Rule
from fedlag.tree import Params


class Measured(NamedTuple):
    """State of the published code's rule."""

    layers: tuple[Layer, ...]  # its layers are single tensors
    names: tuple[str, ...]
    totals: dict[str, int]  # tensor -> conflicting pairs in all rounds of the warm-up
    chosen: tuple[str, ...] = ()  # the tensors it found, once the warm-up is over; nothing follows from it
    personal: bool = False


@dataclass(frozen=True, kw_only=True)
class Official(Rule):
    """After the warm-up everything is personal: training alone from FedAvg's model, whatever was measured before.

    Measured are pairs of clients whose gradients of the last mini-batch conflict, tensor by tensor, added up over the
    warm-up. The k tensors with most are found. Then the broadcast that should leave out those tensors leaves out all,
    because it assigns to its loop variables. Gradients here are those of the trained model, a step later than there.
    """

    k: int = 2
    xi: float = 0.0  # a pair conflicts when its cosine is below
    warmup: int = 31  # of R rounds in all the published code takes min(R // 2, 30) + 1

    def __post_init__(self) -> None:
        check.count("k", self.k)
        check.threshold("xi", self.xi)
        check.count("warmup", self.warmup, least=1)

    def init(self, anatomy: Anatomy) -> Measured:
        candidates = layers.group(anatomy, "tensor", "candidate")
        return Measured(candidates, anatomy.names, {layer.name: 0 for layer in candidates})

    def witness(self, local: Local, end: Params) -> Params:
        """The gradient of the last mini-batch, at the model that training ended with."""
        if local.message.round >= self.warmup:
            return {}
        batches = local.work.stream("train").batches(local.training.batch, local.training.length)
        last = deque(batches, maxlen=1)
        if not last:
            return {}
        (x, y) = last[0]
        grads, _ = local.grad(lambda params: functional.cross_entropy(local.net(params, x), y))(end)
        return tree.select(grads, local.message.shared)

    def update(self, state: Measured, replies: Replies, round: int) -> tuple[Measured, dict[str, Conflict]]:
        if state.personal:
            return state, {}
        seen = [name for name in state.totals if name in replies.witness]
        conflicts = {name: conflict(gram([replies.witness[name]]), self.xi) for name in seen}
        totals = {**state.totals, **{name: state.totals[name] + conflicts[name].count for name in seen}}
        state = state._replace(totals=totals)
        if round + 1 < self.warmup:
            return state, conflicts
        ranked = sorted(totals, key=lambda name: -totals[name])  # stable: ties go to the earlier tensor
        return state._replace(chosen=tuple(ranked[: self.k]), personal=True), conflicts

    def personal(self, state: Measured) -> Names:
        return frozenset(state.names) if state.personal else NONE

    def reach(self, anatomy: Anatomy) -> Names:
        return frozenset(anatomy.names)
