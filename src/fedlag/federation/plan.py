"""A phase of training as rows of examples, step by step: batches of many clients can be lined up by it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedlag.flow import Stream


class Plan(NamedTuple):
    """One client's batches in a phase, all made equally long."""

    rows: Tensor  # (steps, batch) of its examples; 0 where a batch is shorter
    sizes: Tensor  # (steps,) of its batches


def plan(stream: Stream, batch: int, epochs: int) -> Plan:
    rows, sizes = [torch.empty(0, dtype=torch.int64)], list[int]()
    for order in stream.epochs(batch, epochs):
        missing = -len(order) % batch
        rows.append(functional.pad(order, (0, missing)) if missing else order)
        sizes += [batch] * (len(rows[-1]) // batch)
        sizes[-1] -= missing
    return Plan(torch.cat(rows).view(-1, batch), torch.tensor(sizes, dtype=torch.int64))
