"""FedRep: a shared body and everyone's own head, trained in turns."""

from __future__ import annotations

from dataclasses import dataclass

from fedlag import check
from fedlag.algorithm import Algorithm, Phase
from fedlag.personal import Named, Rule


@dataclass(frozen=True, kw_only=True)
class FedRep(Algorithm):
    """Exploiting Shared Representations for Personalized Federated Learning (Collins et al., ICML 2021).

    First the head is fitted to the body as received, then the body is trained under that head.
    """

    personal: Rule = Named("head.*")
    head_epochs: int = 10  # before the epochs of the body, which are the training's

    def __post_init__(self) -> None:
        check.count("head_epochs", self.head_epochs)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return Phase(self.head_epochs, "head.*"), Phase(epochs, "body.*")
