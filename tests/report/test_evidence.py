"""What a report says is what the raw rows say, recomputed here without the code that gathers it."""

import base64

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedlag import execution, experiment, results
from fedlag.report import disagreement, evidence

NAMES = {  # the last two stand in every comparison
    "fedavg": "FedAvg",
    "fedavg-ft": "FedAvg+FT",
    "fedlag": "FedLAG",
    **{name: name for name in ("warmstart", "random-layers")},
}


@pytest.fixture(scope="module")
def found(runs):
    return evidence.gather([results.read(path.parent) for path in sorted(runs.glob("*/manifest.json"))])


def rows(runs, method, seed, table="rounds"):
    (folder,) = runs.glob(f"{method}-s{seed}-*")
    return pq.read_table(folder / f"{table}.parquet").to_pylist()


def scores(runs, method, seed, part):
    """round -> client -> accuracy of its own model."""
    made = {}
    for row in rows(runs, method, seed):
        if (row["stage"], row["part"], row["metric"]) == ("personal", part, "accuracy"):
            made.setdefault(row["round"], {})[row["client"]] = row["value"]
    return made


def headline(runs, method, seed):
    means = {round: np.mean(list(own.values())) for round, own in scores(runs, method, seed, "validation").items()}
    return min(round for round, mean in means.items() if mean == pytest.approx(max(means.values()), abs=1e-12))


def test_gains_are_those_of_the_raw_rows(runs, found):
    told = {
        (name, row["seed"], row["client"]): row["points"]
        for name, rows in evidence.gains(found).items()
        for row in rows
    }
    expected = {}
    for method, name in NAMES.items():
        for seed in (0, 1):
            own = scores(runs, method, seed, "test")[headline(runs, method, seed)]
            alone = scores(runs, "local", seed, "test")[headline(runs, "local", seed)]
            expected |= {(name, seed, client): 100 * (own[client] - alone[client]) for client in own}
    assert told == pytest.approx(expected, abs=1e-3)
    assert len(told) == len(NAMES) * 2 * 6


def test_gains_are_sorted_and_those_of_the_first_methods_have_room(found, monkeypatch):
    told = evidence.gains(found)
    for rows in told.values():
        points = [row["points"] for row in rows]
        assert points == sorted(points, reverse=True)
    monkeypatch.setattr(evidence, "GAINS", 30)
    assert list(evidence.gains(found)) == ["FedLAG", "FedAvg"] == list(told)[:2]


def test_curves_are_those_of_the_raw_rows(runs, found):
    told = {(row["method"], row["round"]): row for row in evidence.curves(found)}
    for round in range(1, 7):
        means = [100 * np.mean(list(scores(runs, "fedlag", seed, "test")[round].values())) for seed in (0, 1)]
        sent = [
            sum(row["bytes"] for row in rows(runs, "fedlag", seed, "bytes") if row["round"] <= round) / 1e6
            for seed in (0, 1)
        ]
        row = told["FedLAG", round]
        assert (row["mean"], row["low"], row["high"]) == pytest.approx(
            (np.mean(means), min(means), max(means)), abs=1e-3
        )
        assert row["megabytes"] == pytest.approx(np.mean(sent), abs=1e-4)


def test_bytes_by_layer_add_up_to_all_bytes(runs, found):
    told = sum(row["megabytes"] for row in evidence.traffic(found) if row["method"] == "FedLAG")
    sent = [sum(row["bytes"] for row in rows(runs, "fedlag", seed, "bytes")) for seed in (0, 1)]
    assert told == pytest.approx(np.mean(sent) / 1e6, abs=1e-4)


def test_every_partition_is_shown_once(runs, found):
    held = evidence.holdings(found)
    assert list(held) == ["seed 0", "seed 1"]
    for seed, told in enumerate(held.values()):
        expected = {}
        for row in rows(runs, "fedavg", seed, "labels"):
            key = row["client"], row["label"]
            expected[key] = expected.get(key, 0) + row["examples"]
        assert {(row["client"], row["label"]): row["examples"] for row in told} == expected


def test_the_conflict_map_is_the_table_of_layers(runs, found):
    one, other = disagreement.gather(found)
    assert (one.name, other.name) == ("FedLAG, seed 0", "FedLAG, seed 1")
    told = {(cell["round"], cell["layer"]): (cell["conflicts"], cell["pairs"], cell["personal"]) for cell in one.cells}
    table = rows(runs, "fedlag", 0, "layers")
    assert told == {(row["round"], row["layer"]): (row["conflicts"], row["pairs"], row["personal"]) for row in table}
    assert any(personal for _, _, personal in told.values())


def test_what_a_frozen_choice_made_personal_is_shown_after_the_last_measurement(tmp_path):
    settings = {
        "algorithm": "fedlag",
        "rounds": 5,
        "personal": {"mode": "frozen", "warmup": 2, "k": 1},
        "data": {"clients": 5, "limit": 250},
        "model": {"hidden": [8]},
    }
    run = results.read(execution.execute(experiment.load(settings), tmp_path / "run"))
    (one,) = disagreement.gather(evidence.gather([run]))
    personal = {cell["layer"] for cell in one.cells if cell["round"] == 5 and cell["personal"]}
    assert len(personal) == 1
    assert [cell["round"] for cell in one.cells if cell["share"] is not None] == [1, 1, 2, 2]
    assert one.decisions[0].chosen == personal
    assert len(disagreement.cells([one])) == 10


def decoded(row):
    """The cosine of every two clients, by their numbers."""
    steps = np.frombuffer(base64.b64decode(row["cosines"]), np.int8) / 127
    places = zip(*np.triu_indices(len(row["clients"]), 1), strict=True)
    return {frozenset((row["clients"][a], row["clients"][b])): step for (a, b), step in zip(places, steps, strict=True)}


def test_matrices_hold_the_recorded_cosines_whatever_their_order(runs, found):
    told = disagreement.matrices(disagreement.gather(found))["FedLAG, seed 1"]
    recorded = rows(runs, "fedlag", 1, "pairs")
    assert len(told) == len(recorded) > 0
    for shown, row in zip(told, recorded, strict=True):
        assert (shown["round"], shown["layer"]) == (row["round"], row["layer"])
        places = zip(*np.triu_indices(len(row["clients"]), 1), strict=True)
        expected = {
            frozenset((row["clients"][a], row["clients"][b])): cosine
            for (a, b), cosine in zip(places, row["cosines"], strict=True)
        }
        assert decoded(shown) == pytest.approx(expected, abs=0.5 / 127 + 1e-6)


def test_where_there_is_little_room_fewer_rounds_are_shown_the_last_among_them(found, monkeypatch):
    measured = disagreement.gather(found)
    monkeypatch.setattr(disagreement, "ROOM", 2 * 2 * 3 * 20)  # two runs, two layers, three rounds, 15 pairs in base64
    for rows in disagreement.matrices(measured).values():
        rounds = {row["round"] for row in rows}
        assert max(rounds) == 6
        assert len(rounds) == 3
    monkeypatch.setattr(disagreement, "ROOM", 10)
    assert disagreement.matrices(measured) == {one.name: [] for one in measured}
    monkeypatch.setattr(disagreement, "CELLS", 2 * 2 * 2)
    assert {cell["round"] for cell in disagreement.cells(measured)} == {1, 6}


@pytest.mark.parametrize(("available", "wanted"), [(1, 1), (5, 5), (7, 3), (300, 120), (3, 9)])
def test_thinning_keeps_the_last(available, wanted):
    places = evidence.spread(available, wanted)
    assert places[-1] == available - 1
    assert len(places) == min(available, wanted)
    assert places[0] == 0 or wanted == 1
