"""What travels arrives as it left, bit for bit, and what cannot be right is refused at the door."""

import json

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedlag import tree
from fedlag.errors import InputError
from fedlag.flow import Letter, Message, Reply, Score
from fedlag.flower import wire
from flower.grids import carried

DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool)

texts = st.text(max_size=8)
numbers = st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.none() | texts


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randn(shape, generator=generator) * draw(st.sampled_from([1.0, 1e30, torch.inf, torch.nan]))
    return values.to(draw(st.sampled_from(DTYPES)))


params = st.dictionaries(texts, tensors(), max_size=3)
trees = st.recursive(
    tensors() | numbers,
    lambda inner: st.dictionaries(texts | st.integers(), inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
names = st.frozensets(texts, max_size=3)
rounds = st.dictionaries(texts, st.integers(-1, 99), max_size=3)
messages = st.builds(Message, st.integers(0, 99), params, names, rounds, names, trees)
calls = st.builds(
    wire.Call,
    federation=texts,
    client=st.integers(0, 99),
    message=messages,
    letter=st.builds(Letter, params, trees, st.integers(-1, 99)),
    scored=st.lists(texts, max_size=2).map(tuple),
    stage=texts,
    seconds=st.floats(1, 1e6),
)
scores = st.dictionaries(texts, st.builds(Score, st.floats(0, 1), st.floats(), st.integers(0, 9)), max_size=2)
stackable = st.dictionaries(texts, tensors() | st.integers(-9, 9) | st.tuples(tensors(), tensors()), max_size=3)
replies = st.builds(Reply, params, params, params, stackable, st.integers(), st.integers(), scores)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


def bits(tensor):
    return tensor.contiguous().numpy().tobytes()


@given(calls)
def test_a_call_arrives_as_it_left(call):
    assert same(wire.read_call(carried(wire.write(call))), call)


@given(replies)
def test_a_reply_arrives_as_it_left(reply):
    answer = wire.Answer(3, 7, reply=reply)
    assert same(wire.read_answer(carried(wire.write(answer))), answer)


@given(calls)
def test_the_payload_is_what_the_ledger_counts(call):
    assert wire.payload(wire.write(call)) == tree.nbytes(call)


def test_a_transposed_tensor_keeps_its_values():
    transposed = torch.arange(6.0).reshape(2, 3).T
    answer = wire.Answer(0, 0, Reply({"a": transposed}, {}, {}, {}, 1, 1, {}))
    assert torch.equal(wire.read_answer(wire.write(answer)).reply.update["a"], transposed)


def test_what_arrives_has_memory_of_its_own():
    content = wire.write(wire.Answer(0, 0, Reply({"a": torch.zeros(3)}, {}, {}, {}, 1, 1, {})))
    first = wire.read_answer(content).reply.update["a"]
    first += 1
    assert torch.equal(wire.read_answer(content).reply.update["a"], torch.zeros(3))


def test_what_json_does_not_know_cannot_travel():
    with pytest.raises(InputError, match="cannot travel"):
        wire.write(wire.Answer(0, 0, Reply({}, {}, {}, {"when": object()}, 1, 1, {})))


REPLY = wire.write(wire.Answer(0, 0, Reply({"a": torch.zeros(3)}, {}, {}, {}, 1, 1, {})))


def changed(**records):
    return RecordDict({**REPLY, **records})


def described(change):
    whole = json.loads(REPLY["fedlag"]["json"])
    return changed(fedlag=ConfigRecord({"json": json.dumps(change(whole))}))


def with_field(name, value):
    def change(whole):
        (fields,) = whole["value"].values()
        return {**whole, "value": {next(iter(whole["value"])): {**fields, name: value}}}

    return described(change)


def array(**fields):
    (one,) = REPLY["arrays"].values()
    return changed(arrays=ArrayRecord({"0": type(one)(**{**vars_of(one), **fields})}))


def vars_of(one):
    return {"dtype": one.dtype, "shape": one.shape, "stype": one.stype, "data": one.data}


def pickled():
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    return buffer.getvalue()


BROKEN = {
    "nothing": RecordDict(),
    "no description": RecordDict({"arrays": ArrayRecord()}),
    "no arrays": RecordDict({"fedlag": REPLY["fedlag"]}),
    "metrics instead of arrays": changed(arrays=MetricRecord({"0": 1.0})),
    "too few arrays": changed(arrays=ArrayRecord()),
    "other text": changed(fedlag=ConfigRecord({"json": "not JSON"})),
    "a list": changed(fedlag=ConfigRecord({"json": "[]"})),
    "deep": changed(fedlag=ConfigRecord({"json": "[" * 100_000})),
    "another format": described(lambda whole: {**whole, "format": 0}),
    "a number": described(lambda whole: {**whole, "value": 7}),
    "an unknown kind": described(lambda whole: {**whole, "value": {"os.system": {}}}),
    "a mis-named field": described(lambda whole: {**whole, "value": {k: {} for k in whole["value"]}}),
    "a client that is text": with_field("client", "0"),
    "scores and a reply": with_field("scores", {"dict": []}),
    "neither": with_field("reply", None),
    "scores that are text": with_field("reply", "text"),
    "a cut array": array(data=REPLY["arrays"]["0"].data[:-1]),
    "an array that claims to be huge": array(
        data=REPLY["arrays"]["0"].data.replace(b"(3,)", b"(9999999999999,)")[:140]
    ),
    "a pickle": array(data=pickled()),
    "another encoding": array(stype="other"),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_right_is_refused_in_a_sentence(content):
    with pytest.raises(InputError, match="What arrived"):
        wire.read_answer(content)


def test_a_call_is_no_answer():
    with pytest.raises(InputError, match="should be a Answer"):
        wire.read_answer(wire.write(wire.Hello(0, (1, 8, 8), 10, {}, "", "", "")))
