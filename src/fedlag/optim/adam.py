"""Adam, in the form used on clients and in the form used on servers."""

from __future__ import annotations

from dataclasses import dataclass

from fedlag import check, tree
from fedlag.optim.adaptive import Adaptive, averaged
from fedlag.optim.optimizer import moved
from fedlag.tree import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Adam(Adaptive):
    """v <- b2 v + (1 - b2) g^2, and the step of `Adaptive`.

    With `bias_correction` (the usual form on clients) m and v start at 0 and are divided by 1 - b^t; without it (the
    form servers use) v starts at eps^2.
    """

    lr: float = 0.001
    beta2: float = 0.999
    eps: float = 1e-8
    bias_correction: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check.share("beta2", self.beta2)

    def init(self, params: Params) -> Tree:
        state = super().init(params)
        return {"steps": 0, **state, "square": tree.zeros_like(params)} if self.bias_correction else state

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        if not self.bias_correction:
            return super().step(params, grads, state)
        steps, mean, square = state["steps"] + 1, self.mean(grads, state), self.square(grads, state)
        rate, root = self.lr / (1 - self.beta1**steps), (1 - self.beta2**steps) ** 0.5
        direction = tree.map(lambda m, v: m / (v.sqrt() / root + self.eps), mean, square)
        return moved(params, direction, -rate), {"steps": steps, "mean": mean, "square": square}

    def square(self, grads: Params, state: Tree) -> Params:
        return averaged(grads, state, self.beta2)
