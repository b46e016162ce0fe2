"""Projecting conflicting updates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlag import check
from fedlag.aggregate.aggregator import Aggregator
from fedlag.aggregate.blocks import SCOPES, recombine
from fedlag.flow import Replies
from fedlag.tree import Params


@dataclass(frozen=True, kw_only=True)
class PCGrad(Aggregator):
    """Gradient Surgery for Multi-Task Learning (Yu et al., NeurIPS 2020).

    From every client's update the part against each other client's is taken out, one after another in a random
    order; then the mean. Clients take the place of tasks, and their updates that of gradients.
    """

    weighting: str = "uniform"
    scope: str = "model"  # "layer": every layer on its own
    seed: int = 0  # of the orders

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of("scope", self.scope, SCOPES)
        check.count("seed", self.seed)

    def __call__(self, replies: Replies) -> Params:
        weights = self.weights(replies)
        share = weights * len(weights)
        order = self.orders(replies)
        return recombine(
            replies.update,
            self.scope,
            lambda gram: projected(gram * torch.outer(share, share), *order).sum(0) * weights,
        )

    def orders(self, replies: Replies) -> tuple[Tensor, Tensor]:
        """Clients (clients,), and for each the order of all others (clients, clients - 1).

        Drawn for ids, not for positions: a client meets the others in the same order wherever it stands.
        """
        generator = np.random.default_rng([self.seed, replies.round])
        clients = np.argsort(replies.ids)
        others = [
            clients[generator.permutation(np.delete(np.arange(len(clients)), rank))] for rank in range(len(clients))
        ]
        return torch.from_numpy(clients), torch.from_numpy(np.array(others))


def projected(gram: Tensor, clients: Tensor, others: Tensor) -> Tensor:
    """Rows of coefficients: row i gives the projected update of clients[i] as a sum of the original updates."""
    rows = torch.eye(len(gram), dtype=gram.dtype)[clients]
    products = gram[clients]  # of the projected with the original updates
    at = torch.arange(len(gram))
    for against in others.T:
        square = gram.diagonal()[against]
        product = products[at, against]
        part = torch.where((product < 0) & (square > 0), product / square, 0.0)
        rows[at, against] -= part
        products = products - part[:, None] * gram[against]
    return rows
