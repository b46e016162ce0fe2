"""Per-FedAvg: an initialisation that is good after one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlag import check, tree
from fedlag.algorithm import Algorithm, Phase, Steps
from fedlag.flow import Batch, Local
from fedlag.optim import SGD
from fedlag.tree import Params, Tree

VARIANTS = ("first-order", "hessian-free", "exact")


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Algorithm):
    """Personalized Federated Learning with Theoretical Guarantees (Fallah, Mokhtari, Ozdaglar, NeurIPS 2020).

    Every step moves the shared model w along the gradient of the loss after one step of size alpha,
    (I - alpha H(w; B'')) g with g the gradient at w - alpha grad f(w; B') on the batch of the step; B' and B'' are
    drawn on their own. Clients use the shared model after one such step; `tune` asks for other phases in its place.
    """

    alpha: float = 0.01
    variant: str = "first-order"  # without the Hessian; the others take its product with g, from gradients or exactly
    delta: float = 1e-3  # how far apart those gradients are taken: the distance between w and w + delta g / |g|

    def __post_init__(self) -> None:
        check.not_negative("alpha", self.alpha)
        check.one_of("variant", self.variant, VARIANTS)
        check.positive("delta", self.delta)

    def step(self, local: Local, params: Params, state: Tree, batch: Batch) -> tuple[Params, Tree]:
        alpha = self.alpha * local.training.decay**local.message.round
        inner, _ = local.grad(self._objective(local, "adapt", batch))(params)
        grads, moved = local.grad(lambda p: self.loss(local, p, batch))(_shifted(params, inner, -alpha))
        if self.variant != "first-order":
            objective = self._objective(local, "curvature", batch)
            product = self._hessian_free if self.variant == "hessian-free" else _exact
            grads = tree.add(grads, product(local, objective, params, grads), alpha=-alpha)
        return local.optimizer.step({**params, **moved}, grads, state)

    def personalize(self, local: Local) -> Params:
        one_step = (Phase(Steps(1), optimizer=SGD(lr=self.alpha)),) if self.alpha else ()
        params, _ = local.fit(local.start, self.tune or one_step, purpose="tune", loss=self.loss)
        return params

    def _objective(self, local: Local, purpose: str, like: Batch) -> Callable[[Params], Tensor]:
        """The loss on a batch of its own, as large as another."""
        drawn = local.work.draw(purpose, local.number, len(like.y))
        return lambda params: self.loss(local, params, drawn)

    def _hessian_free(
        self, local: Local, objective: Callable[[Params], Tensor], params: Params, direction: Params
    ) -> Params:
        length = tree.sq_norm(direction).sqrt()
        distance = self.delta / length.clamp_min(torch.finfo(length.dtype).tiny)
        above, _ = local.grad(objective)(_shifted(params, direction, float(distance)))
        below, _ = local.grad(objective)(_shifted(params, direction, -float(distance)))
        return tree.scale(tree.sub(above, below), 1 / (2 * distance))


def _exact(local: Local, objective: Callable[[Params], Tensor], params: Params, direction: Params) -> Params:
    """The Hessian times a direction: the gradient of the slope along it."""

    def slope(p: Params) -> Tensor:
        variables = [p[name] for name in direction]
        grads = torch.autograd.grad(objective(p), variables, create_graph=True, materialize_grads=True)
        return tree.dot(direction, dict(zip(direction, grads, strict=True)))

    product, _ = local.grad(slope)(params)
    return product


def _shifted(params: Params, direction: Params, by: float) -> Params:
    """params + by * direction, over the names of `direction`."""
    return {**params, **tree.add(tree.select(params, direction), direction, alpha=by)}
