"""What nodes answer, as fedlag's replies: everything is looked at before it is used, and whatever is odd has a reason.

Shapes, counts and finiteness are judged where all replies are gathered (`fedlag.replies`); here only as far as is
needed to say how far a node moved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from flwr.app import Message, MetricRecord, RecordDict

from fedlag import tree
from fedlag.flow import Reply
from fedlag.flower.instructions import RECEIPT, TRAINED, UPDATE, odd, to_tensors
from fedlag.tree import Params


class Answer(NamedTuple):
    node: int
    partition: int | None  # None when the node has not said which data it holds
    reply: Reply | Exception
    content: RecordDict  # as the app wrote it
    counters: Params  # entries that are no floating-point numbers, such as BatchNorm's count of batches


def read(message: Message, round: int, sent: Params, weighted_by: str) -> Answer:
    """sent: what every node was sent in this round; a node's update is what it answers less that."""
    node = message.metadata.src_node_id
    if message.has_error():
        return _unusable(node, RuntimeError(message.error.reason))
    try:
        return _read(node, message.content, round, sent, weighted_by)
    except Exception as error:  # what a stranger sends may raise anything
        return _unusable(node, error)


def _unusable(node: int, error: Exception) -> Answer:
    return Answer(node, None, error, RecordDict(), {})


def _read(node: int, content: RecordDict, round: int, sent: Params, weighted_by: str) -> Answer:
    records, receipt = dict(content.array_records), content.config_records.get(RECEIPT)
    if receipt is None:
        raise ValueError("its ClientApp keeps no personal layers; give it mods=[keep_personal]")
    if receipt.get("round") != round:
        raise ValueError(f"its answer is of round {receipt.get('round')!r}, not {round}")
    update, trained = (to_tensors(records.pop(key)) if key in records else {} for key in (UPDATE, TRAINED))
    if len(records) != 1:
        raise ValueError(f"it answered with {len(records)} ArrayRecords of weights, not one")
    end = to_tensors(*records.values())
    if difference := odd(end, sent):
        raise ValueError(f"it answered with other weights than it was sent: {difference}")
    floats = [name for name, value in sent.items() if value.is_floating_point()]
    if len(content.metric_records) != 1:
        raise ValueError(f"it answered with {len(content.metric_records)} MetricRecords, not one")
    (metrics,) = content.metric_records.values()
    reply = Reply(
        update=tree.sub(tree.select(end, floats), sent) | update,
        trained=trained,
        witness={},
        extra=_form(metrics),
        examples=_whole(weighted_by, metrics.get(weighted_by)),
        steps=0,
        scores={},
    )
    own = {key: record for key, record in content.items() if key not in (RECEIPT, UPDATE, TRAINED)}
    partition = receipt.get("partition")
    counters = {name: value for name, value in end.items() if name not in floats}
    return Answer(node, partition if isinstance(partition, int) else None, reply, RecordDict(own), counters)


def doubles(answers: Collection[Answer]) -> dict[int, str]:
    """Nodes that answer for a partition for which another one answered."""
    first: dict[int, int] = {}
    for answer in answers:
        if answer.partition is not None:
            first.setdefault(answer.partition, answer.node)
    return {
        answer.node: f"node {first[answer.partition]} answered for partition {answer.partition} already"
        for answer in answers
        if answer.partition is not None and first[answer.partition] != answer.node
    }


def outliers(answers: Collection[Answer], factor: float) -> dict[int, str]:
    """Nodes that moved more than `factor` times as far as the median node."""
    moved = {
        answer.node: float(tree.sq_norm(tree.map(torch.Tensor.double, answer.reply.update)).sqrt())
        for answer in answers
        if isinstance(answer.reply, Reply) and tree.finite(answer.reply.update)
    }
    usual = float(torch.tensor(list(moved.values())).median()) if moved else 0.0
    return {
        node: f"it moved {length / usual:.3g} times as far as the median node"
        for node, length in moved.items()
        if 0 < usual * factor < length
    }


def usual_metrics(contents: Sequence[RecordDict], weighted_by: str) -> list[RecordDict]:
    """The contents that can be averaged: one MetricRecord with a positive weight, and the same entries as in most."""
    sound = [content for content in contents if _weighs(content, weighted_by)]
    forms = [_key(next(iter(content.metric_records.values()))) for content in sound]
    return [content for content, form in zip(sound, forms, strict=True) if form == max(forms, key=forms.count)]


def _weighs(content: RecordDict, weighted_by: str) -> bool:
    weights = [metrics.get(weighted_by) for metrics in content.metric_records.values()]
    return len(weights) == 1 and isinstance(weights[0], int | float) and 0 < weights[0] < float("inf")


def _key(metrics: MetricRecord) -> frozenset[tuple[str, object]]:
    return frozenset(_form(metrics).items())


def _form(metrics: Mapping[str, object]) -> dict[str, object]:
    """What two nodes' metrics must have in common to be averaged: names, and lengths of lists."""
    return {key: (0.0,) * len(value) if isinstance(value, list) else 0.0 for key, value in metrics.items()}


def _whole(name: str, number: object) -> int:
    """A count of examples; FedAvg accepts floats, so whole ones pass."""
    if isinstance(number, float) and number.is_integer():
        return int(number)
    if not isinstance(number, int):
        raise ValueError(f"its {name} is {number}, not a whole number")
    return number
