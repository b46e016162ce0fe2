"""Every round reaches every sink, also when a run is interrupted; a missing package is named before anything runs."""

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedlag import cli, execution, experiment, sinks
from fedlag.errors import InputError

SMALL = {
    "algorithm": "fedlag",
    "rounds": 4,
    "data": {"clients": 4, "alpha": 0.5, "limit": 200},
    "model": {"hidden": [4]},
    "personal": {"k": 1, "warmup": 1},
}

needs = {
    name: pytest.mark.skipif(not importlib.util.find_spec(name), reason=f"needs the extra {name}")
    for name in sinks.SINKS
}
others_warn = pytest.mark.filterwarnings("ignore::Warning")  # these packages have warnings of their own


class Stop(Exception):
    pass


def interrupted(one, folder, at):
    """Run, stop while round `at` is told, and go on."""

    def stop(event):
        if event["type"] == "round" and event["round"] == at:
            raise Stop

    with pytest.raises(Stop):
        execution.execute(one, folder, stop)
    execution.execute(one, folder)


def expected(folder):
    """The numbers of every round, by round."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return {event["round"]: sinks.numbers(event) for event in events}


def test_what_goes_to_a_sink_changes_neither_a_run_nor_its_name():
    one, told = experiment.load(SMALL), experiment.load(SMALL, 'log.sinks=["tensorboard"]')
    assert told.log.sinks == ("tensorboard",)
    assert (one.hash, one.folder) == (told.hash, told.folder)
    assert experiment.load(told.table()) == told


def test_every_sink_is_told_every_round_and_where_a_run_goes_on(tmp_path, monkeypatch):
    told = []

    class Recorder:
        def __init__(self, one, folder, round):
            told.append(("open", round))

        def __call__(self, event):
            told.append(event["round"])

        def close(self):
            told.append("close")

    monkeypatch.setitem(sinks.SINKS, "json", Recorder)  # a package that is always there
    one = experiment.load({**SMALL, "log": {"sinks": ["json"]}})
    interrupted(one, tmp_path / "run", at=3)
    again = told.index("close") + 1
    assert told[:again] == [("open", 0), 1, 2, "close"]
    _, done = told[again]  # rounds that were in the checkpoint
    assert done < 3
    assert told[again:] == [("open", done), *range(done + 1, 5), "close"]


def test_a_run_does_not_end_because_a_sink_does(tmp_path, monkeypatch, caplog):
    told = []

    class Weak:
        def __init__(self, one, folder, round):
            pass

        def __call__(self, event):
            told.append(event["round"])
            raise ConnectionError("gone")

        def close(self):
            raise ConnectionError("still gone")

    monkeypatch.setitem(sinks.SINKS, "json", Weak)
    folder = execution.execute(experiment.load({**SMALL, "log": {"sinks": ["json"]}}), tmp_path / "run")
    assert list(expected(folder)) == [1, 2, 3, 4]
    assert told == [1]
    assert "The sink 'json' failed and is told no more: gone" in caplog.text


def test_numbers_are_those_of_the_event(tmp_path):
    folder = execution.execute(experiment.load(SMALL), tmp_path / "run")
    first, *_, last = expected(folder).values()
    assert {name for name in first if name.startswith("personal/")} == {"personal/body.fc1", "personal/head"}
    assert first["personal_layers"] == first["personal/body.fc1"] + first["personal/head"] == 0
    assert last["personal_layers"] == last["personal/body.fc1"] + last["personal/head"] == 1
    assert all(0 <= last[f"conflicts/{layer}"] <= 1 for layer in ("body.fc1", "head"))


@pytest.mark.parametrize("name", sinks.SINKS)
def test_a_missing_package_is_named_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.main, ["run", "--log", name])
    assert done.exit_code == 2
    assert f'pip install "fedlag[{name}]"' in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_sink_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="Did you mean 'tensorboard'"):
        experiment.load(SMALL, 'log.sinks=["tensorbord"]')


def test_a_sink_that_fails_to_open_says_so(tmp_path, monkeypatch):
    def refuse(one, folder, round):
        raise RuntimeError("no server there")

    monkeypatch.setitem(sinks.SINKS, "json", refuse)
    with pytest.raises(InputError, match="'json' cannot be opened: no server there"):
        execution.execute(experiment.load({**SMALL, "log": {"sinks": ["json"]}}), tmp_path / "run")


@needs["tensorboard"]
@others_warn
def test_tensorboard_reads_back_what_was_written(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    interrupted(experiment.load(SMALL, 'log.sinks=["tensorboard"]'), tmp_path / "run", at=3)
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    rounds = expected(tmp_path / "run")
    names = {name for numbers in rounds.values() for name in numbers}
    assert set(read.Tags()["scalars"]) == names
    for name in names:
        found = {scalar.step: scalar.value for scalar in read.Scalars(name)}
        assert len(read.Scalars(name)) == len(found)  # no round twice
        assert found == {number: pytest.approx(numbers[name]) for number, numbers in rounds.items() if name in numbers}


@needs["mlflow"]
@others_warn
def test_mlflow_has_one_run_with_every_round(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    one = experiment.load(SMALL, 'log.sinks=["mlflow"]')
    interrupted(one, tmp_path / "run", at=3)
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fedlag").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["data.clients"] == "4"
    for number, numbers in expected(tmp_path / "run").items():
        for name, value in numbers.items():
            points = client.get_metric_history(run.info.run_id, name)
            assert value in [point.value for point in points if point.step == number]


@needs["wandb"]
@others_warn
@pytest.mark.slow
def test_weights_and_biases_runs_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    one = experiment.load(SMALL, 'log.sinks=["wandb"]')
    folder = execution.execute(one, tmp_path / "run")
    (written,) = Path(folder).glob(f"wandb/offline-run-*/run-{one.hash}.wandb")
    assert b"validation_accuracy" in written.read_bytes()


@needs["tensorboard"]
@others_warn
def test_the_option_reaches_every_run_of_a_comparison(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["rounds=2", "data.clients=4", "data.limit=200", "model.hidden=[4]", "data.alpha=0.5", "compare.seeds=1"]
    methods = 'compare.methods=["local","fedavg"]'
    done = CliRunner().invoke(
        cli.main, ["compare", methods, *words, "--log", "tensorboard", "--out", "here", "--workers=1"]
    )
    assert done.exit_code == 0, done.output
    runs = list(Path("here").glob("*/manifest.json"))
    assert len(runs) > 1
    assert len(list(Path("here").glob("*/tensorboard/*"))) == len(runs)
