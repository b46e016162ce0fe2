"""FedCAC: entries a client depends on are averaged only with clients that depend on the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlag import check, tree
from fedlag.algorithm import Algorithm, Finish, Outcome
from fedlag.flow import Local, Replies, Server
from fedlag.net import Model
from fedlag.tree import Params, Tree

LEAST, NOTHING = 1e-10, 1e-20  # a threshold that is too low, and a sensitivity that is none: the authors'
ROUNDING = 1e-9  # of overlaps


@dataclass(frozen=True, kw_only=True)
class FedCAC(Algorithm):
    """Bold but Cautious: Unlocking the Potential of Personalized Federated Learning … (Wu et al., ICCV 2023).

    Critical entries of a client come from its customised model, which averages clients with similar critical entries;
    all others come from the shared model. Statistics of normalisation are the client's own.
    """

    critical: float = 0.5  # tau, share of every tensor's entries
    patience: float = 100.0  # beta, rounds until only the most similar clients collaborate

    keeps: ClassVar[str] = "*.running_mean *.running_var"

    def __post_init__(self) -> None:
        check.fraction("critical", self.critical)
        check.positive("patience", self.patience)

    def remember(self, params: Params, clients: int) -> Tree:
        return {"customised": {}}

    def remember_client(self, params: Params) -> Tree:
        return {"critical": {}}

    def letter(self, server: Server, client: int) -> Tree:
        return server.memory["customised"].get(client, {})

    def receive(self, local: Local) -> Params:
        customised, critical = local.letter.extra, local.client.memory["critical"]
        return {
            **local.start,
            **tree.select(local.client.params, local.net.statistic_names),
            **{
                name: torch.where(critical[name], value, local.start[name])
                for name, value in customised.items()
                if name in critical
            },
        }

    def finish(self, local: Local, end: Params, steps: int) -> Finish:
        names = [name for name in local.net.parameter_names if name in local.message.shared]
        moved = tree.sub(tree.select(end, names), self.receive(local))
        critical = tree.map(lambda change, value: most((change * value).abs(), self.critical), moved, end)
        return Finish({"critical": critical}, {"critical": critical})

    def aggregate(self, server: Server, replies: Replies, net: Model) -> Outcome:
        collaborators = self.collaborators(overlaps(replies), server.round + 1)
        shares = collaborators / collaborators.sum(1, keepdim=True)
        means = tree.map(
            lambda update, start: start + torch.tensordot(shares.to(update), update, dims=1),
            replies.update,
            server.params,
        )
        mine = {client: tree.map(lambda x, i=i: x[i].clone(), means) for i, client in enumerate(replies.ids)}
        customised = {**server.memory["customised"], **mine}
        outcome = super().aggregate(server, replies, net)
        return outcome._replace(memory={"customised": dict(sorted(customised.items()))})

    def personalize(self, local: Local) -> Params:
        return super().personalize(local._replace(start=self.receive(local)))

    def collaborators(self, overlap: Tensor, round: int) -> Tensor:
        """Who averages with whom in this round (from 1): booleans (participants, participants)."""
        alone = torch.eye(len(overlap), dtype=torch.bool, device=overlap.device)
        others = overlap[~alone]
        if not len(others):
            return alone
        threshold = others.mean() + round / self.patience * (others.max() - others.mean())
        return alone | (overlap >= threshold - ROUNDING)


def most(sensitivity: Tensor, share: float) -> Tensor:
    """Marks that share of the entries, rounded down, with the highest sensitivity, and those equal to the last."""
    count = int(share * sensitivity.numel())
    if not count or not (sensitivity > NOTHING).any():
        return torch.zeros_like(sensitivity, dtype=torch.bool)
    least = sensitivity.flatten().kthvalue(sensitivity.numel() - count + 1).values
    return sensitivity >= (least if least > LEAST else sensitivity[sensitivity > NOTHING].min())


def overlaps(replies: Replies) -> Tensor:
    """1 - |m_i - m_j| / (2 |m_i|) for every two participants' critical entries m; 0 where m_i is empty."""
    both = torch.zeros(len(replies.ids), len(replies.ids), dtype=torch.float64)
    for masks in replies.extra["critical"].values():
        rows = masks.flatten(1).float()
        both += (rows @ rows.T).to(both)
    size = both.diagonal()
    differ = size.unsqueeze(1) + size - 2 * both
    return torch.where(size.unsqueeze(1) > 0, 1 - differ / (2 * size.unsqueeze(1)), 0.0)
