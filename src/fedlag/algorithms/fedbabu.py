"""FedBABU: the body alone is federated, under a head nobody trains."""

from __future__ import annotations

from dataclasses import dataclass

from fedlag.algorithm import Algorithm, Phase
from fedlag.personal import Named, Rule


@dataclass(frozen=True, kw_only=True)
class FedBABU(Algorithm):
    """FedBABU: Toward Enhanced Representation for Federated Image Classification (Oh et al., ICLR 2022).

    The head stays the same random draw everywhere until each client tunes a copy of the whole model for itself.
    """

    personal: Rule = Named("head.*")
    tune: tuple[Phase, ...] = (Phase(5),)

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        return (Phase(epochs, "body.*"),)
