"""What a site keeps survives whatever happens to its processes and its server."""

import logging
import os
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlag.errors import InputError
from fedlag.flow import Client
from fedlag.flower.store import Store

RUN = "0123456789abcdef"


def client(round, value=None):
    value = round if value is None else value
    return Client(round, {"head.weight": torch.full((2, 3), float(value)), "head.bias": torch.tensor(value / 3)}, {})


def held(store, before):
    """The value that a client of `client` above held."""
    found = store.load(before)
    return float(found.params["head.weight"][0, 0]) if found.params else None


@pytest.fixture
def store(tmp_path):
    return Store.of(tmp_path, RUN, site=3)


class Momentum(NamedTuple):
    velocity: dict
    steps: int


def test_a_client_comes_back_bit_for_bit_with_all_it_remembers(store):
    control = {"a.b": torch.randn(4), "half": torch.randn(3).bfloat16()}
    memory = {"control": control, "momentum": Momentum({}, 3), "x": 0.1}
    saved = Client(8, {"a.b": torch.randn(2, 5).T, "scalar": torch.tensor(2**60)}, memory)
    store.save(saved)
    found = store.load(9, like=memory)
    assert found.round == 8
    assert isinstance(found.memory["momentum"], Momentum)
    assert found.memory["x"] == 0.1
    for mine, theirs in ((saved.params, found.params), (control, found.memory["control"])):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert value.dtype == theirs[name].dtype
            assert torch.equal(value, theirs[name])


def test_tensors_that_share_memory_are_kept_each_for_itself(store):
    weight = torch.arange(6.0)
    store.save(Client(0, {"whole": weight, "part": weight[2:4]}))
    assert store.load(1).params["part"].tolist() == [2, 3]


def test_a_client_nobody_has_met_holds_nothing(store):
    assert store.load(5) == Client()


@given(rounds=st.lists(st.integers(0, 12), min_size=1, max_size=20), asked=st.integers(0, 14))
def test_it_is_given_what_it_held_before_the_round_of_the_last_two_it_trained(tmp_path_factory, rounds, asked):
    store = Store.of(tmp_path_factory.mktemp("store"), RUN, 0)
    history = {}
    for step, round in enumerate(rounds):
        history = {old: value for old, value in history.items() if old < round} | {round: step}
        history = dict(sorted(history.items())[-2:])
        store.save(client(round, step))
        assert store.rounds() == list(history)
    before = [step for round, step in history.items() if round < asked]
    assert held(store, asked) == (before[-1] if before else None)


def test_a_round_the_server_never_committed_is_trained_again_from_the_same_start(store):
    for round in range(5):
        store.save(client(round))
    assert held(store, before=4) == 3
    store.save(client(4, value=40))
    assert held(store, before=5) == 40
    assert held(store, before=4) == 3


def test_runs_and_sites_do_not_see_each_other(tmp_path):
    Store.of(tmp_path, RUN, 1).save(client(0))
    assert Store.of(tmp_path, RUN, 2).load(1) == Client()
    assert Store.of(tmp_path, "f" * 32, 1).load(1) == Client()


@pytest.mark.parametrize("run", ["../../etc", "", "ABCDEF0123", "a" * 65])
def test_the_name_of_a_run_leads_nowhere_else(tmp_path, run):
    with pytest.raises(InputError, match="hexadecimal"):
        Store.of(tmp_path, run, 1)


@pytest.mark.parametrize("place", ["header", "values", "cut", "empty"])
def test_a_damaged_copy_is_said_and_the_older_one_stands_in(store, caplog, place):
    store.save(client(1))
    store.save(client(2))
    path = store.folder / "round-000002.safetensors"
    content = bytearray(path.read_bytes())
    if place in ("header", "values"):
        content[20 if place == "header" else -1] ^= 1
    path.write_bytes(content[: {"cut": 30, "empty": 0}.get(place, len(content))])
    with caplog.at_level(logging.WARNING):
        assert held(store, before=3) == 1
    assert "round-000002" in caplog.text


def test_a_process_that_dies_while_writing_leaves_what_was_there(store, monkeypatch):
    store.save(client(1))
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.save(client(2))
    monkeypatch.undo()
    assert store.rounds() == [1]
    assert held(store, before=3) == 1


def test_a_full_disk_is_one_sentence(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        store.save(client(1))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_the_owner_may_look(store):
    store.save(client(1))
    assert store.folder.stat().st_mode & 0o077 == 0
