"""Who conflicts with whom is recorded whole, within bounds, and says the same as the tables."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlag import divergence, execution, experiment, labels, pairs, results

SETTINGS = {
    "algorithm": "fedlag",
    "rounds": 6,
    "personal": {"k": 1, "warmup": 2, "xi": -0.01},
    "data": {"clients": 6, "limit": 300},
    "model": {"hidden": [8]},
    "training": {"lr": 0.1},
    "sampling": {"fraction": 0.7},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return execution.execute(experiment.load(SETTINGS), tmp_path_factory.mktemp("runs") / "run")


def test_recorded_cosines_say_what_the_table_of_layers_says(folder):
    counted = {(row["round"], row["layer"]): row for row in results.read(folder).layers.to_pylist()}
    rows = pairs.load(folder).to_pylist()
    assert {(row["round"], row["layer"]) for row in rows} == {key for key, row in counted.items() if row["pairs"]}
    for row in rows:
        matrix = pairs.matrix(row["cosines"], len(row["clients"]))
        found = divergence.conflict(torch.tensor(matrix), xi=-0.01)
        said = counted[row["round"], row["layer"]]
        assert (found.count, found.pairs) == (said["conflicts"], said["pairs"])
        assert found.mean_cosine == pytest.approx(said["mean_cosine"], abs=1e-6)
        assert len(row["clients"]) == 4  # 0.7 of 6


def test_an_interrupted_run_records_the_same_pairs(folder, tmp_path):
    """As after a kill: the events of a run say what its last checkpoint knows, and the rest comes again."""
    one = experiment.load(SETTINGS)

    class Killed(Exception):
        pass

    def stop(event):
        if event.get("round") == 4:
            raise Killed

    with pytest.raises(Killed):
        execution.execute(one, tmp_path / "run", stop)
    execution.resume(tmp_path / "run")
    assert pairs.load(tmp_path / "run").equals(pairs.load(folder))


def test_what_comes_again_is_not_recorded_twice(folder):
    again = pairs.Pairs.read(folder, before=3, keep=range(1, 7)).table()
    assert again["round"].to_pylist() == [row for row in pairs.load(folder)["round"].to_pylist() if row <= 3]


@given(rounds=st.integers(1, 3000), layers=st.integers(0, 200), participants=st.integers(1, 3000))
def test_however_long_a_run_and_however_many_clients_the_file_stays_small(rounds, layers, participants):
    chosen = pairs.kept(rounds, layers, participants)
    size = layers * participants * (participants - 1) // 2
    assert len(chosen) * size <= pairs.LIMIT
    assert set(chosen) <= set(range(1, rounds + 1))
    assert size > pairs.LIMIT or chosen[-1] == rounds
    assert len(set(np.diff(chosen))) <= 1


def test_a_run_without_such_files_has_none_to_show(tmp_path):
    assert pairs.load(tmp_path).num_rows == labels.load(tmp_path).num_rows == 0


def test_recorded_labels_are_the_partition(folder):
    federated = execution.prepare(experiment.load(SETTINGS)).federated
    table = pq.read_table(folder / labels.FILE)
    counts = np.zeros((federated.clients, federated.dataset.classes), dtype=int)
    for row in table.to_pylist():
        counts[row["client"], row["label"]] += row["examples"]
    assert counts.tolist() == [federated.label_counts(client).tolist() for client in range(federated.clients)]
    by_part = table.group_by(["client", "part"]).aggregate([("examples", "sum")]).to_pylist()
    for row in by_part:
        assert row["examples_sum"] == len(getattr(federated.parts[row["client"]], row["part"]))
