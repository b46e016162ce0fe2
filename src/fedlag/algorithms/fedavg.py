"""Communication-Efficient Learning of Deep Networks from Decentralized Data (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedlag.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """One shared model, the mean of locally trained copies."""


@dataclass(frozen=True, kw_only=True)
class Centralised(Algorithm):
    """One model trained on everybody's examples in one place: what no federation may do, for reference."""

    pooled: ClassVar[bool] = True
