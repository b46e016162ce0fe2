"""Laws of keeping clients on disk: the same bits as in memory, whenever the process ends."""

import re
import sqlite3
import tempfile
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import BARE, SEED, SOME, conv, same, start, with_lag

from fedlag.algorithms.fedavg import FedAvg
from fedlag.errors import InputError
from fedlag.flow import Client, Server
from fedlag.lag import LAG
from fedlag.optim import Adam
from fedlag.personal import Named
from fedlag.run import evaluate, rounds
from fedlag.store import FILE, IN_MEMORY, Store, footprint, wanted

METHODS = {
    "a head at home, and LAG": FedAvg(server=Adam(), personal=Named("head.*") | LAG(k=1, warmup=1, hold=2)),
    "control variates": with_lag(BARE["scaffold"]),
    "a second model": with_lag(BARE["ditto"]),
    "nothing": FedAvg(),
}
every_method = pytest.mark.parametrize("algorithm", [pytest.param(value, id=name) for name, value in METHODS.items()])


def server(round=0, met=None):
    return Server(round=round, params={"w": torch.ones(2)}, optimizer={}, rule=(), memory={}, since={}, met=met or {})


@pytest.fixture
def opened(tmp_path):
    """Stores on one file, as one process after another would open them."""
    stores = []

    def open_store():
        for store in stores:
            store.close()
        stores.append(Store(tmp_path / FILE, server()))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def advance(task, begun, federation, number):
    """The server after some rounds, and what everybody scores after each."""
    scores = []
    for done in islice(rounds(task, begun, federation, SOME, SEED), number):
        begun = done.server
        scores.append(evaluate(task, begun, federation))
    return begun, scores


@every_method
def test_clients_on_disk_train_and_score_as_those_in_memory(tmp_path, algorithm):
    task, begun, memory = start(algorithm, net=conv)
    _, _, disk = start(algorithm, net=conv)
    store = Store(tmp_path / FILE, begun)
    disk.restore(store)
    assert same(advance(task, begun, disk, 5), advance(task, begun, memory, 5))
    assert same(dict(sorted(store.items())), dict(sorted(memory.clients().items())))
    store.close()


@every_method
@pytest.mark.parametrize("committed", [True, False])
def test_a_process_that_ends_goes_on_from_its_last_checkpoint(tmp_path, algorithm, committed):
    task, begun, memory = start(algorithm, net=conv)
    half, _ = advance(task, begun, memory, 2)
    whole = advance(task, half, memory, 3)

    store = Store(tmp_path / FILE, begun)
    _, _, disk = start(algorithm, net=conv)
    disk.restore(store)
    half, _ = advance(task, begun, disk, 2)
    store.commit()
    store.follow(half.round)
    advance(task, half, disk, 2)  # what comes after a checkpoint may be lost, and may not
    if committed:
        store.commit()
    store.close()

    store = Store(tmp_path / FILE, begun)
    store.rewind(half)
    _, _, again = start(algorithm, net=conv)
    again.restore(store)
    assert same(advance(task, half, again, 3), whole)
    assert same(dict(sorted(store.items())), dict(sorted(memory.clients().items())))
    store.close()


events = st.lists(
    st.tuples(st.just("train"), st.integers(0, 3)) | st.sampled_from([("checkpoint",), ("commit",), ("die",)]),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(events)
def test_whatever_happens_clients_are_as_the_last_checkpoint_and_the_rounds_since_left_them(happening):
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / FILE, server())
        now, at_checkpoint, round, checkpoint_round = {}, {}, 0, 0
        for event, *client in happening:
            if event == "train":
                now[client[0]] = store[client[0]] = Client(round, {"w": torch.full((2,), float(round))}, (round,))
                round += 1
            elif event == "commit":  # and then the checkpoint does not become whole
                store.commit()
            elif event == "checkpoint":
                store.commit()
                store.follow(round)
                at_checkpoint, checkpoint_round = dict(now), round
            else:
                store.close()
                store = Store(Path(folder) / FILE, server())
                store.rewind(server(checkpoint_round, {c: kept.round for c, kept in at_checkpoint.items()}))
                now, round = dict(at_checkpoint), checkpoint_round
            assert same(dict(store), dict(sorted(now.items())))
            assert len(store) == len(now)
        versions = store._database.execute("select count(*) from client group by client").fetchall()
        assert all(count <= 2 for (count,) in versions)
        store.close()


def test_a_client_nobody_met_is_not_there(opened):
    store = opened()
    assert store.get(7) is None
    assert 7 not in store
    store[7] = Client(0)
    assert 7 in store
    del store[7]
    with pytest.raises(KeyError):
        del store[7]


def test_a_checkpoint_whose_clients_are_gone_is_refused(opened):
    store = opened()
    store[3] = Client(1, {"w": torch.ones(2)})
    store.commit()
    store = opened()
    store.rewind(server(2, {3: 1}))
    with pytest.raises(
        InputError, match=re.escape(f"{FILE} cannot be used (it lacks what client 5 kept after round 1")
    ):
        store.rewind(server(2, {3: 1, 5: 1}))
    with pytest.raises(InputError, match="lacks what client 3 kept"):
        store.rewind(server(1, {3: 1}))


@pytest.mark.parametrize("column", ["state", "tensors"])
def test_no_flipped_bit_goes_unnoticed(tmp_path, opened, column):
    store = opened()
    store[3] = Client(1, {"w": torch.ones(2)})
    store.commit()
    store.close()
    with sqlite3.connect(tmp_path / FILE) as database:
        (whole,) = database.execute(f"select {column} from client").fetchone()
        flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
        database.execute(f"update client set {column} = ?", [flipped])
    database.close()
    store = opened()
    with pytest.raises(InputError, match="what client 3 kept is not as it was written"):
        store[3]


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / FILE).write_bytes(b"something else entirely" * 100)
    with pytest.raises(InputError, match=r"clients\.sqlite cannot be used .*not a database"):
        Store(tmp_path / FILE, server())


def test_a_full_disk_is_one_sentence(tmp_path, opened):
    store = opened()
    store._database.execute("pragma max_page_count = 3")
    with pytest.raises(InputError, match=r"clients\.sqlite cannot be used .*full.*make room"):
        store[3] = Client(1, {"w": torch.ones(100_000)})


def test_large_populations_are_kept_on_disk_unless_told_otherwise():
    task, begun, _ = start(FedAvg(personal=Named("head.*")), net=conv)
    head = sum(begun.params[name].nbytes for name in ("head.weight", "head.bias"))
    assert footprint(task, begun) == task.clients * head
    many = task.__class__(**{**vars(task), "clients": IN_MEMORY // head + 1})
    assert [wanted(where, many, begun) for where in ("auto", "memory", "disk")] == [True, False, True]
    assert [wanted(where, task, begun) for where in ("auto", "memory", "disk")] == [False, False, True]
    assert footprint(start(BARE["scaffold"], net=conv)[0], begun) > 0
