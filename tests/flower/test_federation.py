"""A run over Flower's messages is the run in this process, bit for bit; only what is shared travels."""

import pytest

from fedlag import tree
from fedlag.algorithms import REGISTRY
from fedlag.experiment import can_take_lag
from fedlag.flower import wire
from fedlag.results import read
from flower.runs import LAG, app, in_process, on_flower, same, scores, server_of

pytestmark = pytest.mark.usefixtures("no_waiting_for_disks")

METHODS = [name for name in REGISTRY if not REGISTRY[name]().pooled]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_bits_as_in_one_process(tmp_path, method):
    """With LAG, where it can take it."""
    one = app(tmp_path, algorithm=method, **({"personal": LAG} if can_take_lag(method) else {}))
    _, folder = on_flower(one, tmp_path)
    expected = in_process(one, tmp_path)
    assert same(server_of(folder), server_of(expected))
    assert scores(folder) == scores(expected)


# What travels


def names_in(content):
    """Parameter names that have a tensor in a message, with what it is part of."""
    call = wire.read_call(content)
    return {*call.message.shared, *call.letter.birth, *tree.keys(call.message.extra), *tree.keys(call.letter.extra)}


def test_what_is_personal_never_goes_down_to_a_client_that_has_it(tmp_path):
    one = app(tmp_path, algorithm="scaffold", personal=LAG, rounds=6, evaluate_every=1)
    grid, _ = on_flower(one, tmp_path)
    met = set()
    for (_, _, client), content in grid.sent:
        if "fedlag" not in content:
            continue  # the first call of all, which holds nothing
        call = wire.read_call(content)
        if call.message.personal and client in met:
            assert not call.message.personal & names_in(content)
        if call.scored == ():
            met.add(client)
    assert any(wire.read_call(content).message.personal for _, content in grid.sent if "fedlag" in content)


def test_frozen_after_the_warm_up_personal_layers_do_not_go_up_either(tmp_path):
    one = app(tmp_path, algorithm="fedavg", personal={**LAG, "mode": "frozen"}, rounds=5)
    grid, _ = on_flower(one, tmp_path)
    last = [wire.read_answer(content).reply for what, content in grid.received if what[:2] == ("train", 5)]
    personal = wire.read_call(grid.sent[-1][1]).message.personal
    assert len(last) == 4
    assert personal
    for reply in last:
        assert not personal & {*reply.update, *reply.trained, *tree.keys(reply.extra)}


@pytest.mark.parametrize("mode", ["dynamic", "frozen"])
def test_bytes_measured_equal_the_ledger(tmp_path, mode):
    one = app(tmp_path, algorithm="scaffold", personal={**LAG, "mode": mode}, rounds=5)
    grid, folder = on_flower(one, tmp_path)
    for way, messages in (("down", grid.sent), ("up", grid.received)):
        for round in range(1, 6):
            measured = sum(wire.payload(content) for what, content in messages if what[:2] == ("train", round))
            rows = read(folder).bytes.to_pylist()
            ledger = sum(row["bytes"] for row in rows if (row["direction"], row["round"]) == (way, round))
            assert measured == ledger > 0
