"""What every client trains on and is scored on, made ready where it is used."""

from __future__ import annotations

from functools import cache
from typing import cast

import torch

from fedlag.data.federated import Federated, Part
from fedlag.federation.work import Source
from fedlag.flow import Batch

READY_LIMIT = 10**8  # numbers that may be kept as float32 besides the data as stored


def own(federated: Federated, device: torch.device) -> Source:
    """Everybody has its own examples, made ready once where they are few."""

    def examples(client: int, part: str) -> Batch:
        return Batch(*(tensor.to(device) for tensor in federated.examples(client, cast(Part, part))))

    return cache(examples) if federated.dataset.x.numel() < READY_LIMIT else examples


def pooled(federated: Federated, device: torch.device) -> Source:
    """Everybody trains on everybody's examples, and is scored on its own."""
    apart = own(federated, device)
    everything = [apart(client, "train") for client in range(federated.clients)]
    together = Batch(torch.cat([batch.x for batch in everything]), torch.cat([batch.y for batch in everything]))
    return lambda client, part: together if part == "train" else apart(client, part)
