"""Laws of what a run records."""

import errno
import os
import struct
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import SEED, SOME, Wrapped, conv, mlp, start
from safetensors.torch import save

from fedlag import layers, tree
from fedlag.algorithm import Finish
from fedlag.algorithms.fedavg import FedAvg
from fedlag.errors import InputError
from fedlag.flow import Score
from fedlag.lag import LAG
from fedlag.personal import Named, Rule, WarmStart
from fedlag.round import Step
from fedlag.run import Sampling, evaluate, rounds
from fedlag.tables import SCHEMAS, Tables, candidates, load


def recorded(algorithm, net=mlp, sampling=SOME, number=6, wrap=Wrapped):
    """The tables of some rounds, the rounds themselves, and the federation that overheard them."""
    task, server, federation = start(algorithm, net=net)
    federation, tables = wrap(federation), Tables()
    recordable, done = candidates(task.anatomy, server.rule), []
    for one in islice(rounds(task, server, federation, sampling, SEED), number):
        tables.add_bytes(one)
        tables.add_layers(one.server.round, one.step, recordable)
        tables.add_dropped(one.server.round, one.dropped)
        done.append(one)
    return tables, done, federation


def sent(tables, direction, round=None):
    """Bytes by layer."""
    total = Counter()
    for row in tables.table("bytes").to_pylist():
        if row["direction"] == direction and round in (None, row["round"]):
            total[row["layer"]] += row["bytes"]
    return total


def sizes(params):
    """Bytes by layer, of one copy."""
    total = Counter()
    for name, value in params.items():
        total[name.rpartition(".")[0]] += value.numel() * value.element_size()
    return total


def payload(sent):
    """Bytes of a safetensors file of all tensors, without its header."""
    tensors = {str(place): value for place, value in enumerate(tree.leaves(sent)) if isinstance(value, torch.Tensor)}
    file = save({name: value.clone(memory_format=torch.contiguous_format) for name, value in tensors.items()})
    return len(file) - 8 - int.from_bytes(file[:8], "little")


def times(number, sizes):
    return {layer: number * size for layer, size in sizes.items()}


# Bytes


class Talkative(FedAvg):
    """Sends more than the model, in every way there is."""

    def message(self, server):
        return {"like the model": server.params, "once": torch.zeros(3, dtype=torch.float64)}

    def letter(self, server, client):
        return {"number": torch.zeros(client + 1)}

    def finish(self, local, end, steps):
        return Finish({}, (torch.ones(5), {"step": torch.tensor(steps)}))


class Curious(Rule):
    """Asks for more than updates."""

    def witness(self, local, end):
        return {"head.weight": end["head.weight"], "body.1.bias": torch.zeros(2)}


METHODS = {
    "fedavg": FedAvg(),
    "fedper": FedAvg(personal=Named("head.*")),
    "dynamic": FedAvg(personal=LAG(k=1, warmup=2)),
    "frozen": FedAvg(personal=LAG(k=2, warmup=2, mode="frozen")),
    "warmstart": FedAvg(personal=WarmStart(warmup=3)),
    "local": FedAvg(personal=Named("*")),
    "curious": FedAvg(personal=Curious()),
    "talkative": Talkative(personal=Named("head.*") | LAG(k=1, warmup=2)),
}
every_method = pytest.mark.parametrize("algorithm", [pytest.param(value, id=name) for name, value in METHODS.items()])


@pytest.mark.parametrize("net", [mlp, conv])
@every_method
def test_bytes_are_those_of_every_tensor_as_serialised_to_and_from_every_client(algorithm, net):
    tables, _, federation = recorded(algorithm, net)
    counted = Counter()
    for row in tables.table("bytes").to_pylist():
        counted[row["round"], row["direction"], row["client"]] += row["bytes"]
    serialised = Counter()
    for number, (message, letters, replies) in enumerate(federation.heard, start=1):
        for client, letter in letters.items():
            serialised[number, "down", client] = payload(message) + payload(letter)
        for client, reply in replies.items():
            serialised[number, "up", client] = payload(reply)
    assert counted == serialised
    assert sum(counted.values()) > 0


@pytest.mark.parametrize("net", [mlp, conv])
def test_fedavg_sends_the_whole_model_both_ways_to_every_participant(net):
    tables, done, _ = recorded(FedAvg(), net)
    whole = sizes(done[0].message.shared)
    assert whole.total() > 0
    for one in done:
        assert sent(tables, "down", one.server.round) == times(3, whole)
        assert sent(tables, "up", one.server.round) == times(3, whole)


def test_a_personal_head_never_travels_to_those_who_have_one():
    """A newcomer starts from the initial head, which is sent to it alone."""
    tables, done, _ = recorded(FedAvg(personal=Named("head.*")))
    assert "head" not in sent(tables, "up")
    copy = sizes(done[0].server.params)["head"]
    met = set()
    for one in done:
        newcomers = one.letters.keys() - met
        assert sent(tables, "down", one.server.round)["head"] == len(newcomers) * copy
        met |= newcomers
    assert len(met) > 3


def test_frozen_layers_travel_in_neither_direction_after_the_warm_up():
    tables, done, _ = recorded(METHODS["frozen"], sampling=Sampling())
    whole, personal = sizes(done[0].message.shared), done[-1].step.personal
    hidden = {name.rpartition(".")[0] for name in personal}
    assert len(hidden) == 2
    for one in done:
        expected = times(5, {layer: size for layer, size in whole.items() if layer not in hidden or one.number < 2})
        assert sent(tables, "down", one.server.round) == sent(tables, "up", one.server.round) == expected


def test_watched_layers_travel_up_twice_and_not_down():
    tables, done, _ = recorded(METHODS["dynamic"], sampling=Sampling())
    whole = sizes(done[0].message.shared)
    assert any(one.message.watched for one in done)
    for one in done:
        watched = {name.rpartition(".")[0] for name in one.message.watched}
        up, down = sent(tables, "up", one.server.round), sent(tables, "down", one.server.round)
        assert up == times(5, {layer: size * (2 if layer in watched else 1) for layer, size in whole.items()})
        if not any(letter.birth for letter in one.letters.values()):
            assert down == times(5, {layer: size for layer, size in whole.items() if layer not in watched})


def test_training_alone_uploads_nothing():
    tables, _, _ = recorded(METHODS["local"])
    assert sent(tables, "up") == {}


def test_what_an_algorithm_adds_is_extra():
    tables, done, _ = recorded(Talkative(), sampling=Sampling())
    for one in done:
        model = sizes(one.message.shared).total()
        assert sent(tables, "down", one.server.round)["extra"] == 5 * (model + 24) + 4 * (1 + 2 + 3 + 4 + 5)
        assert sent(tables, "up", one.server.round)["extra"] == 5 * (5 * 4 + 8)


class Silent(Wrapped):
    """The second participant's answer is lost; in the fourth round, everybody's."""

    def answer(self, round, client, reply):
        if round == 3:
            yield client, RuntimeError("no \udcff answer")
        elif client != sorted(self.heard[-1][1])[1]:
            yield client, reply


def test_lost_replies_are_named_and_not_counted():
    tables, done, _ = recorded(FedAvg(), wrap=Silent)
    whole = sizes(done[0].message.shared)
    for one in done:
        replies = 0 if one.number == 3 else 2
        assert sent(tables, "down", one.server.round) == times(3, whole)
        assert sent(tables, "up", one.server.round) == (times(replies, whole) if replies else {})
    first = [row for row in tables.table("bytes").to_pylist() if row["round"] == 1]
    heard = {way: {row["client"] for row in first if row["direction"] == way} for way in ("down", "up")}
    assert heard["down"] - heard["up"] == {sorted(done[0].letters)[1]}
    dropped = tables.table("dropped").to_pylist()
    assert [row["round"] for row in dropped] == [1, 2, 3, 4, 4, 4, 5, 6]
    assert dropped[0] == {"round": 1, "client": sorted(done[0].letters)[1], "reason": "it did not answer"}
    assert dropped[4]["reason"] == "it failed: no ? answer"
    assert {row["round"] for row in tables.table("layers").to_pylist()} == {1, 2, 3, 5, 6}


# Layers


def test_what_was_measured_is_recorded_with_what_it_led_to():
    tables, done, _ = recorded(METHODS["dynamic"], conv)
    rows = iter(tables.table("layers").to_pylist())
    for one in done:
        for layer in ("body.0", "body.5", "head"):
            row, conflict = next(rows), one.step.conflicts[layer]
            assert (row["round"], row["layer"]) == (one.server.round, layer)
            assert (row["conflicts"], row["pairs"]) == (conflict.count, conflict.pairs)
            for number in ("mean_cosine", "norm", "improvement"):
                assert row[number] == getattr(conflict, number)
            assert row["personal"] == (f"{layer}.weight" in one.step.personal)
    assert next(rows, None) is None
    assert sum(tables.table("layers")["personal"].to_pylist()) == 4  # one layer in each round from the third on


def test_layers_nobody_measures_are_recorded_all_the_same():
    tables, _, _ = recorded(METHODS["warmstart"])
    rows = tables.table("layers").to_pylist()
    assert [(row["round"], row["layer"]) for row in rows] == [
        (round, layer) for round in range(1, 7) for layer in ("body.1", "body.3", "head")
    ]
    for row in rows:
        assert row["personal"] == (row["round"] >= 3)
        assert [row[name] for name in ("conflicts", "pairs", "mean_cosine", "norm", "improvement")] == [None] * 5


@pytest.mark.parametrize(
    ("rule", "names", "measured"),
    [
        (LAG(k=1, warmup=1), ["body.0", "body.5", "head"], [True, True, True]),
        (Named("head.*") | LAG(k=1, warmup=1), ["body.0", "body.5", "head"], [True, True, False]),
        (
            LAG(k=1, warmup=1, unit={"all linear": "body.5.* head.*"}, norm="share"),
            ["body.0", "all linear"],
            [False, True],
        ),
        (
            Named("head.*") | LAG(k=1, warmup=1, unit="tensor"),
            ["body.0.weight", "body.0.bias", "body.5.weight", "body.5.bias", "head"],
            [True, True, True, True, False],
        ),
        (Named("head.*"), ["body.0", "body.5", "head"], [False, False, False]),
    ],
)
def test_recorded_are_the_layers_a_rule_chooses_among_and_all_others_in_the_models_order(rule, names, measured):
    tables, done, _ = recorded(FedAvg(personal=rule), conv, number=3)
    last = [row for row in tables.table("layers").to_pylist() if row["round"] == 3]
    assert [row["layer"] for row in last] == names
    assert [row["pairs"] is not None for row in last] == measured
    members = {"all linear": "body.5.weight", "head": "head.weight"}
    for row in last:
        name = members.get(row["layer"], row["layer"])
        own = {one for one in done[-1].message.since | done[-1].server.params if one.startswith(name)}
        assert row["personal"] == (not own.isdisjoint(done[-1].step.personal))
    assert any(row["personal"] for row in last)


def test_a_measured_layer_nobody_described_is_not_called_shared():
    task, server, _ = start(FedAvg(), net=mlp)
    _, done, _ = recorded(FedAvg(personal=LAG(k=1, warmup=1, unit="tensor")), number=1)
    tables = Tables()
    tables.add_layers(1, done[0].step, candidates(task.anatomy, server.rule))
    personal = {row["layer"]: row["personal"] for row in tables.table("layers").to_pylist()}
    assert personal["head"] is False
    assert personal["head.weight"] is None


def test_a_layer_of_which_a_part_is_personal_is_marked():
    task, _, _ = start(FedAvg(), net=mlp)
    tables = Tables()
    tables.add_layers(1, Step({}, frozenset(["body.3.bias"])), layers.group(task.anatomy))
    assert tables.table("layers")["personal"].to_pylist() == [False, True, False]


# Scores


def test_scores_are_recorded_one_number_a_row():
    tables = Tables()
    tables.add_scores(4, "personal", {2: {"validation": Score(0.5, 1.25, 8), "test": Score(1.0, 0.0, 3)}})
    tables.add_scores(4, "global", {2: {"test": Score(0.0, float("inf"), 3)}})
    assert [tuple(row.values()) for row in tables.table("rounds").to_pylist()] == [
        (4, 2, "validation", "personal", "accuracy", 0.5),
        (4, 2, "validation", "personal", "loss", 1.25),
        (4, 2, "validation", "personal", "examples", 8.0),
        (4, 2, "test", "personal", "accuracy", 1.0),
        (4, 2, "test", "personal", "loss", 0.0),
        (4, 2, "test", "personal", "examples", 3.0),
        (4, 2, "test", "global", "accuracy", 0.0),
        (4, 2, "test", "global", "loss", float("inf")),
        (4, 2, "test", "global", "examples", 3.0),
    ]


def test_every_client_is_recorded_as_evaluated():
    task, server, federation = start(FedAvg(), net=mlp)
    scores = evaluate(task, server, federation)
    tables = Tables()
    tables.add_scores(0, "personal", scores)
    rows = tables.table("rounds").to_pylist()
    assert len(rows) == 5 * 2 * 3
    for row in rows:
        assert row["value"] == getattr(scores[row["client"]][row["part"]], row["metric"])


# Files

floats = st.floats() | st.just(struct.unpack("d", bytes.fromhex("010000000000f87f"))[0])
scores = st.dictionaries(
    st.integers(0, 2**31 - 1),
    st.dictionaries(st.sampled_from(["validation", "test"]), st.builds(Score, floats, floats, st.integers(0, 2**53))),
    max_size=4,
)


def bits(tables):
    """The rows of all tables, floats as bits."""
    return {
        name: [
            tuple(struct.pack("d", value) if isinstance(value, float) else value for value in row.values())
            for row in tables.table(name).to_pylist()
        ]
        for name in SCHEMAS
    }


@settings(max_examples=20, deadline=None)
@given(st.lists(scores, min_size=1, max_size=3))
def test_what_is_read_is_what_was_written_to_the_bit(recorded):
    tables = Tables()
    for round, one in enumerate(recorded):
        tables.add_scores(round, "trained", one)
        tables.add_dropped(round, {client: f"reason {client} é" for client in one})
    with tempfile.TemporaryDirectory() as folder:
        tables.write(Path(folder))
        assert bits(Tables.read(Path(folder), before=len(recorded))) == bits(tables)


def test_no_float_takes_the_bits_of_its_neighbour(tmp_path):
    """Parquet lists values that occur again only once: those that are equal to the bit."""
    odd = [struct.unpack("d", bytes.fromhex(one))[0] for one in ("010000000000f87f", "000000000000f87f", "0" * 16)]
    tables = Tables()
    tables.add_scores(
        1, "personal", {client: {"test": Score(x, y, 1)} for client, x in enumerate(odd) for y in (-0.0,)}
    )
    tables.write(tmp_path)
    assert bits(Tables.read(tmp_path, before=1)) == bits(tables)


def test_taking_up_at_a_checkpoint_forgets_what_came_after(tmp_path):
    whole, done, _ = recorded(METHODS["dynamic"], wrap=Silent)
    for one in done:
        whole.add_scores(one.server.round, "personal", {0: {"test": Score(one.number / 7, 0.5, 7)}})
    whole.write(tmp_path)
    for before in range(1, 7):
        tables = Tables.read(tmp_path, before=before)
        kept = {name: [row for row in rows if row[0] <= before] for name, rows in bits(whole).items()}
        assert bits(tables) == kept
        assert all(kept.values())


def test_killed_and_taken_up_again_the_files_are_the_same(tmp_path):
    straight, done, _ = recorded(METHODS["frozen"], wrap=Silent)
    straight.write(tmp_path)
    expected = bits(Tables.read(tmp_path, before=6))
    task, server, _ = start(METHODS["frozen"], net=mlp)
    again = Tables.read(tmp_path, before=2)
    for one in done[2:]:
        again.add_bytes(one)
        again.add_layers(one.server.round, one.step, candidates(task.anatomy, server.rule))
        again.write(tmp_path)  # more often than before
        again.add_dropped(one.server.round, one.dropped)
    again.write(tmp_path)
    assert bits(Tables.read(tmp_path, before=6)) == expected


def test_before_the_first_checkpoint_whatever_lies_there_is_forgotten(tmp_path):
    assert bits(Tables.read(tmp_path, before=0)) == bits(Tables())
    Tables().write(tmp_path)
    (tmp_path / "layers.parquet").unlink()  # killed while it wrote them for the first time
    assert bits(Tables.read(tmp_path, before=0)) == bits(Tables())


def test_empty_tables_have_their_columns_and_types(tmp_path):
    Tables().write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.parquet" for name in SCHEMAS}
    for name, table in load(tmp_path).items():
        assert table.schema.equals(SCHEMAS[name])
        assert table.num_rows == 0


@pytest.mark.parametrize("damage", ["missing", "truncated", "text", "another table"])
def test_a_damaged_file_is_named(tmp_path, damage):
    Tables().write(tmp_path)
    path = tmp_path / "layers.parquet"
    whole = path.read_bytes()
    path.unlink()
    if damage == "another table":
        pq.write_table(pa.table({"round": [1]}), path)
    elif damage != "missing":
        path.write_bytes({"truncated": whole[:-9], "text": b"round,layer\n"}[damage])
    with pytest.raises(InputError, match=r"layers\.parquet"):
        Tables.read(tmp_path, before=1)


def test_a_full_disk_is_one_sentence_and_leaves_the_old_table(tmp_path, monkeypatch):
    tables = Tables()
    tables.write(tmp_path)
    old = (tmp_path / "rounds.parquet").read_bytes()
    tables.add_scores(1, "personal", {0: {"test": Score(0.5, 0.5, 2)}})

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"rounds\.parquet cannot be written \(No space left on device\)"):
        tables.write(tmp_path)
    assert (tmp_path / "rounds.parquet").read_bytes() == old
    assert len(list(tmp_path.iterdir())) == len(SCHEMAS)
