"""A run is a directory that survives anything: kill -9, a second writer, a full disk, another experiment."""

import json
import multiprocessing
import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from fedlag import checkpoint, execution, experiment, files, pairs, tables, tree
from fedlag.errors import InputError
from fedlag.execution import execute, resume
from fedlag.store import FILE, Store

SMALL = {"rounds": 4, "data": {"clients": 5, "alpha": 0.5}, "model": {"hidden": [8]}, "training": {"lr": 0.1}}
HARD = {  # everything there is to lose: personal layers that come and go, server moments, sampling, absent clients
    "algorithm": {"name": "fedlag", "server": {"kind": "sgd", "lr": 0.7, "momentum": 0.5}},
    "rounds": 60,
    "personal": {"k": 1, "warmup": 2},
    "data": {"clients": 8, "limit": 600},
    "model": {"hidden": [16], "norm": "batch"},
    "training": {"lr": 0.1, "momentum": 0.5},
    "sampling": {"fraction": 0.6},
    "evaluate_every": 3,
}


def final_state(folder: Path, one: experiment.Experiment):
    begun = execution.prepare(one).server
    saved = checkpoint.load(folder, one.hash, begun)
    assert saved is not None
    server, clients = saved
    if (folder / "checkpoint" / FILE).exists():
        assert not clients
        with closing(Store(folder / "checkpoint" / FILE, begun)) as store:
            clients = dict(store)
    return server, dict(sorted(clients.items()))


def assert_same_runs(one: experiment.Experiment, left: Path, right: Path) -> None:
    (server, clients), (other_server, other_clients) = final_state(left, one), final_state(right, one)
    for a, b in ((server, other_server), (clients, other_clients)):
        ours, theirs = list(tree.leaves(a)), list(tree.leaves(b))
        assert len(ours) == len(theirs)
        for x, y in zip(ours, theirs, strict=True):
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    assert list(tree.keys(server)) == list(tree.keys(other_server))
    for name, table in tables.load(left).items():
        assert table.equals(tables.load(right)[name]), name
    assert pairs.load(left).equals(pairs.load(right))


def test_a_run_leaves_what_a_run_must_leave(tmp_path):
    one = experiment.load(SMALL)
    seen = []
    folder = execute(one, tmp_path / "run", seen.append)
    assert {path.name for path in folder.iterdir()} >= {
        "experiment.toml",
        "manifest.json",
        "events.jsonl",
        "rounds.parquet",
        "layers.parquet",
        "bytes.parquet",
        "dropped.parquet",
        "checkpoint",
    }
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events] == [1, 2, 3, 4]
    assert [event for event in seen if event["type"] == "round"] == events
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["hash"] == one.hash
    assert manifest["rounds"] == 4
    assert experiment.load(folder / "experiment.toml") == one


def test_a_finished_run_is_left_as_it_is(tmp_path):
    one = experiment.load(SMALL)
    folder = execute(one, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    seen = []
    execute(one, folder, seen.append)
    assert [event["type"] for event in seen] == ["finished"]
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_killed_at_twenty_random_moments_a_run_ends_with_the_same_bits(tmp_path, store):
    whole = execute(experiment.load(HARD), tmp_path / "whole")
    one = experiment.load(HARD, f"store={store}")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedlag.execution"])
    folder, moments, kills = tmp_path / "killed", random.Random(0), 0
    while kills < 20:
        process = context.Process(target=execute, args=(one, folder))
        process.start()
        process.join(moments.uniform(0.0, 0.6) if kills else 0.0)
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
        else:  # it was faster
            assert process.exitcode == 0
            assert_same_runs(one, whole, folder)
            folder = folder.with_name(f"{folder.name}-again")
    execute(one, folder)
    assert_same_runs(one, whole, folder)


@pytest.mark.parametrize(("store", "then"), [("memory", "memory"), ("disk", "disk"), ("memory", "disk")])
def test_an_interrupted_run_goes_on_from_its_directory_alone(tmp_path, store, then):
    whole = execute(experiment.load({**HARD, "rounds": 12}), tmp_path / "whole")
    one = experiment.load({**HARD, "rounds": 12, "store": store})

    class Stop(Exception):
        pass

    def stop(event):
        if event["type"] == "round" and event["round"] == 7:
            raise Stop

    with pytest.raises(Stop):
        execute(one, tmp_path / "stopped", stop)
    if then == store:
        resume(tmp_path / "stopped")
    else:
        execute(experiment.load({**HARD, "rounds": 12, "store": then}), tmp_path / "stopped")
    assert (tmp_path / "stopped" / "checkpoint" / FILE).exists() == (then == "disk")
    assert_same_runs(one, whole, tmp_path / "stopped")
    events = [json.loads(line)["round"] for line in (tmp_path / "stopped" / "events.jsonl").read_text().splitlines()]
    assert events == list(range(1, 13))


def test_a_directory_of_another_experiment_is_refused_and_untouched(tmp_path):
    execute(experiment.load(SMALL), tmp_path / "run")
    before = (tmp_path / "run" / "experiment.toml").read_bytes()
    with pytest.raises(InputError, match="another experiment"):
        execute(experiment.load(SMALL, "seed=1"), tmp_path / "run")
    assert (tmp_path / "run" / "experiment.toml").read_bytes() == before


def test_a_checkpoint_of_another_experiment_is_refused(tmp_path):
    execute(experiment.load(SMALL), tmp_path / "run")
    other = experiment.load(SMALL, "seed=1")
    for name in ("manifest.json", "experiment.toml"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(InputError, match=r"checkpoint|experiment"):
        execute(other, tmp_path / "run")


def test_a_directory_that_another_process_writes_is_refused(tmp_path):
    one = experiment.load({**SMALL, "rounds": 100_000})
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=execute, args=(one, tmp_path / "run"))
    process.start()
    try:
        for _ in range(600):
            if (tmp_path / "run" / "manifest.json").exists():
                break
            time.sleep(0.1)
        with pytest.raises(InputError, match="Another process is writing"):
            execute(one, tmp_path / "run")
    finally:
        process.kill()
        process.join()


def test_what_is_not_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(InputError, match="is not a run"):
        resume(tmp_path)


def test_a_full_disk_ends_a_run_with_a_sentence_and_loses_nothing(tmp_path, monkeypatch):
    one = experiment.load({**HARD, "rounds": 8})
    whole = execute(one, tmp_path / "whole")
    real, calls = os.replace, []

    def full(source, target, **kwargs):
        calls.append(target)
        if len(calls) == 12:
            raise OSError(28, "No space left on device", str(target))
        return real(source, target, **kwargs)

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        execute(one, tmp_path / "run")
    monkeypatch.undo()
    execute(one, tmp_path / "run")
    assert_same_runs(one, whole, tmp_path / "run")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        execute(experiment.load(SMALL), tmp_path / "file" / "run")


def test_a_missing_data_set_says_where_it_looked_and_leaves_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    one = experiment.load({**SMALL, "data": {"name": "mnist", "root": str(tmp_path / "empty")}})
    with pytest.raises(InputError, match="empty"):
        execute(one, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rounds_nobody_can_answer_are_skipped_and_said_so(tmp_path):
    one = experiment.load({**SMALL, "training": {"lr": 1e30}, "rounds": 2})
    seen = []
    folder = execute(one, tmp_path / "run", seen.append)
    assert all(event["skipped"] for event in seen if event["type"] == "round")
    assert "not finite" in tables.load(folder)["dropped"]["reason"][0].as_py()


def test_centralised_training_learns_from_everybody(tmp_path):
    one = experiment.load({**SMALL, "algorithm": "centralised"})
    parts = execution.prepare(one)
    together = parts.federation.source(3, "train")
    assert len(together.y) == sum(len(rows.train) for rows in parts.federated.parts)
    assert len(parts.federation.source(3, "test").y) == len(parts.federated.parts[3].test)
