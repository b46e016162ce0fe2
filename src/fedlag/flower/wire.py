"""Calls and answers as Flower's records: the tensors as arrays, all else as a description. Nothing is pickled.

A record dict holds `arrays`, an ArrayRecord of numbered arrays, and `fedlag`, a ConfigRecord with the JSON in which an
array stands as its number. What comes in is checked before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedlag import tree
from fedlag.checkpoint import decode, encode, kinds
from fedlag.errors import InputError
from fedlag.flow import Letter, Message, Reply, Score, Scores
from fedlag.tree import Tree

Kind = TypeVar("Kind")

FORMAT = 1  # of what is described here


class Call(NamedTuple):
    """From the server to one client: train, or show how well you do."""

    federation: str  # which run this is: what a client keeps is kept for this one
    client: int
    message: Message
    letter: Letter
    scored: tuple[str, ...]  # parts to score the model on
    stage: str = "personal"  # of an evaluation
    seconds: float = 600.0  # after which nobody waits any more


class Hello(NamedTuple):
    """What a client says when it is first met. Nothing about single examples."""

    client: int
    shape: tuple[int, ...]  # of one example
    classes: int
    examples: dict[str, int]  # part -> how many
    partition: str  # digest of which rows it holds, or of its own data
    experiment: str  # the hash of the experiment it would train in
    version: str


class Answer(NamedTuple):
    """From one client to the server. Exactly one of `reply`, `scores` and `problem` is there."""

    client: int
    round: int
    reply: Reply | None = None
    scores: Scores | None = None
    problem: str = ""  # why there is neither
    lost: bool = False  # it no longer has what it kept


KNOWN = kinds(
    (
        Call("", 0, Message(0, {}, frozenset(), {}, frozenset(), {}), Letter({}, {}), ()),
        Hello(0, (), 0, {}, "", "", ""),
        Answer(0, 0, Reply({}, {}, {}, {}, 0, 0, {"": Score(0.0, 0.0, 0)})),
    )
)
NUMBERS = "biuf"  # kinds of NumPy's types that are plain numbers


def write(value: Call | Hello | Answer) -> RecordDict:
    """As records for a Flower message."""
    tensors: list[Tensor] = []
    try:
        described = json.dumps({"format": FORMAT, "value": encode(value, tensors)}, allow_nan=False)
        arrays = {str(number): _array(tensor) for number, tensor in enumerate(tensors)}
    except TypeError as error:
        raise InputError(f"This algorithm exchanges something that cannot travel: {error}.") from error
    return RecordDict({"arrays": ArrayRecord(arrays), "fedlag": ConfigRecord({"json": described})})


def read_call(content: RecordDict) -> Call:
    return _checked(_read(content), Call, _sound_call)


def read_hello(content: RecordDict) -> Hello:
    return _checked(_read(content), Hello, _sound_hello)


def read_answer(content: RecordDict) -> Answer:
    return _checked(_read(content), Answer, _sound_answer)


def payload(content: RecordDict) -> int:
    """Bytes of tensors in a message: what the ledger counts."""
    return sum(
        math.prod(array.shape) * np.dtype(array.dtype).itemsize
        for record in content.array_records.values()
        for array in record.values()
    )


def _array(tensor: Tensor) -> Array:
    return Array(np.require(tensor.detach().cpu().numpy(), requirements="C"))


def _tensor(array: Array) -> Tensor:
    """The tensor, in memory of PyTorch's own: sums may depend on how memory is aligned."""
    values = array.numpy()
    if values.dtype.kind not in NUMBERS:
        raise ValueError(f"an array of {values.dtype}")
    return torch.from_numpy(np.require(values, requirements=["C", "W"])).clone()


def _read(content: RecordDict) -> Any:
    try:
        described = json.loads(str(content["fedlag"]["json"]))
        record = content["arrays"]
        if not isinstance(record, ArrayRecord):
            raise ValueError("arrays is not an ArrayRecord")
        tensors = [_tensor(record[str(number)]) for number in range(len(record))]
        if described["format"] != FORMAT:
            raise ValueError(f"format {described['format']}, not {FORMAT}")
        return decode(described["value"], tensors, KNOWN)
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError, MemoryError, OSError) as error:
        raise InputError(
            f"What arrived is no message of fedlag's ({type(error).__name__}: {error}); run the same version of fedlag "
            "on the server and on all clients, and no mod that changes what travels."
        ) from error


def _checked(value: Any, kind: type[Kind], sound: Callable[[Kind], bool]) -> Kind:
    if not isinstance(value, kind) or not sound(value):
        found = "is not in order" if isinstance(value, kind) else f"is a {type(value).__name__}"
        raise InputError(f"What arrived should be a {kind.__name__} of fedlag's, but {found}.")
    return value


def _sound_call(call: Call) -> bool:
    message, letter = call.message, call.letter
    return (
        _types(call, str, int, Message, Letter, tuple, str, float)
        and _types(message, int, dict, frozenset, dict, frozenset, object)
        and _types(letter, dict, object, int)
        and all(isinstance(tensor, Tensor) for tensor in (*message.shared.values(), *letter.birth.values()))
    )


def _sound_hello(hello: Hello) -> bool:
    return (
        _types(hello, int, tuple, int, dict, str, str, str)
        and hello.client >= 0
        and hello.classes > 0
        and all(type(size) is int and size > 0 for size in hello.shape)
    )


def _sound_answer(answer: Answer) -> bool:
    """As far as it goes without the task; what a reply holds is judged where replies are gathered."""
    there = sum((answer.reply is not None, answer.scores is not None, bool(answer.problem)))
    if there != 1 or not _types(answer, int, int, object, object, str, bool):
        return False
    if answer.scores is not None:
        return _scores(answer.scores)
    if answer.reply is not None:
        reply = answer.reply
        return (
            _types(reply, dict, dict, dict, object, int, int, dict)
            and all(isinstance(value, Tensor) for value in reply.witness.values())
            and _stackable((reply.witness, reply.extra))
            and _scores(reply.scores)
        )
    return True


def _scores(scores: Any) -> bool:
    return isinstance(scores, dict) and all(
        isinstance(part, str)
        and isinstance(score, Score)
        and _types(score, float, float, int)
        and 0 <= score.accuracy <= 1
        and score.examples >= 0
        for part, score in scores.items()
    )


def _stackable(value: Tree) -> bool:
    return all(isinstance(leaf, Tensor | float | int) for leaf in tree.leaves(value))


def _types(value: tuple[Any, ...], *expected: type) -> bool:
    return len(value) == len(expected) and all(
        kind is object or type(entry) is kind for entry, kind in zip(value, expected, strict=True)
    )
