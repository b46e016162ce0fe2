"""Does the choice of personal layers hang on single clients?

Every decision of LAG is taken again without each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from fedlag import divergence
from fedlag.lag import LAG
from fedlag.pairs import matrix
from fedlag.personal import aged

Seen = dict[str, tuple[int, int, float]]  # layer -> conflicting pairs, pairs, mean cosine


class Decision(NamedTuple):
    """What was chosen after a round, and what would have been without each client."""

    round: int
    chosen: frozenset[str]
    without: dict[int, frozenset[str]]  # client left out -> layers

    @property
    def pivotal(self) -> list[int]:
        """Clients without whom other layers would be personal."""
        return [client for client, layers in self.without.items() if layers != self.chosen]

    def share(self, layer: str) -> float:
        """Of the clients, those without whom the layer is chosen."""
        return sum(layer in layers for layers in self.without.values()) / len(self.without)


def decisions(rule: LAG, layers: Iterable[Mapping[str, Any]], pairs: Iterable[Mapping[str, Any]]) -> list[Decision]:
    """The decisions whose cosines are recorded, in order.

    layers, pairs: rows of these tables of a run. A frozen choice adds up the rounds of its warm-up, so all of them
    must be recorded.
    """
    measured = _by_round(row for row in layers if row["pairs"])
    recorded = {round: _without(rule, rows) for round, rows in _by_round(pairs).items()}
    if rule.mode == "frozen":
        return _frozen(rule, measured, recorded)
    made, ages = [], dict[str, int]()
    for round, rows in measured.items():
        if round <= rule.warmup:
            continue
        if recorded.get(round):
            made.append(_decide(rule, round, _seen(rows), recorded[round], ages))
        ages = aged(ages, [row["layer"] for row in rows if row["personal"]])
    return made


def _frozen(rule: LAG, measured: dict[int, list[Any]], recorded: dict[int, dict[int, Seen]]) -> list[Decision]:
    rounds = [round for round in measured if round <= rule.warmup]
    if not rounds or not all(recorded.get(round) for round in rounds):
        return []
    clients = {client for round in rounds for client in recorded[round]}
    everyone = [_seen(measured[round]) for round in rounds]
    # Without a client, the rounds in which it took no part stay as they were.
    without = {
        client: _sum(recorded[round].get(client, whole) for round, whole in zip(rounds, everyone, strict=True))
        for client in sorted(clients)
    }
    return [_decide(rule, rule.warmup, _sum(everyone), without, {})]


def _decide(rule: LAG, round: int, seen: Seen, without: dict[int, Seen], ages: dict[str, int]) -> Decision:
    again = {client: frozenset(rule.choose(rest, ages)) for client, rest in without.items()}
    return Decision(round, frozenset(rule.choose(seen, ages)), again)


def _without(rule: LAG, rows: list[Any]) -> dict[int, Seen]:
    """What one round would have shown without each of its participants, if two or more then remain."""
    clients = rows[0]["clients"]
    if len(clients) < 3:
        return {}
    seen: dict[int, Seen] = {client: {} for client in clients}
    pairs = (len(clients) - 1) * (len(clients) - 2) // 2
    for row in rows:
        cosines = torch.from_numpy(matrix(row["cosines"], len(clients)))
        counts = divergence.leave_one_out(cosines, rule.xi).tolist()
        alone = cosines.sum(1) - 1  # each client's cosines with all others
        means = ((alone.sum() / 2 - alone) / pairs).tolist()
        for client, count, mean in zip(clients, counts, means, strict=True):
            seen[client][row["layer"]] = (count, pairs, mean)
    return seen


def _seen(rows: list[Any]) -> Seen:
    return {row["layer"]: (row["conflicts"], row["pairs"], row["mean_cosine"]) for row in rows}


def _sum(seen: Iterable[Seen]) -> Seen:
    total: Seen = {}
    for one in seen:
        for layer, new in one.items():
            old = total.get(layer, (0, 0, 0.0))
            total[layer] = (old[0] + new[0], old[1] + new[1], old[2] + new[2])
    return total


def _by_round(rows: Iterable[Mapping[str, Any]]) -> dict[int, list[Any]]:
    made: dict[int, list[Any]] = {}
    for row in rows:
        made.setdefault(row["round"], []).append(row)
    return made
