"""A sweep runs what is missing, and leaves one store in which every row knows its settings."""

import importlib
import json
import re
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from fedlag import cli, experiment, gather, results, sweep
from fedlag.errors import InputError

TINY = {"rounds": 2, "data": {"clients": 4, "alpha": 0.5, "limit": 200}, "model": {"hidden": [4]}}
LAG = {**TINY, "algorithm": "fedlag", "personal": {"warmup": 1}}
WORDS = ["rounds=2", "data.clients=4", "data.alpha=0.5", "data.limit=200", "model.hidden=[4]", "personal.warmup=1"]


def test_every_combination_and_seed_is_an_experiment():
    found = sweep.experiments(LAG, "personal.k=0,1", "training.lr=0.1,0.05,0.01", "seeds=2")
    assert len({one.hash for one in found}) == 2 * 3 * 2
    assert {(one.algorithm.personal.k, one.training.optimizer.lr, one.seed, one.data.seed) for one in found} == {
        (k, lr, seed, seed) for k in (0, 1) for lr in (0.1, 0.05, 0.01) for seed in (0, 1)
    }


def test_one_value_is_a_setting_and_a_list_is_one_value():
    found = sweep.experiments(TINY, "algorithm=fedavg,fedper", "model.hidden=[8, 4],[16]", "training.lr=0.5")
    assert [(one.method, one.model.hidden) for one in found] == [
        ("fedavg", (8, 4)),
        ("fedavg", (16,)),
        ("fedper", (8, 4)),
        ("fedper", (16,)),
    ]
    assert {one.training.optimizer.lr for one in found} == {0.5}


def test_without_a_sweep_it_is_the_experiment_itself():
    assert sweep.experiments(LAG) == [experiment.load(LAG)]


def test_what_makes_no_difference_stands_once():
    base = {**LAG, "compare": {"methods": ["local", "fedlag"], "seeds": 2}}
    found = sweep.experiments(base, "personal.k=0,1,2")
    counts = Counter(one.method for one in found)  # the controls of every comparison among them
    assert counts["local"] == counts["fedavg"] == counts["warmstart"] == 2
    assert counts["fedlag"] == counts["random-layers"] == 3 * 2


def test_methods_of_a_comparison_are_told_apart_by_the_settings_they_have(tmp_path):
    words = ("personal.k=0,1", "rounds=1")
    found = sweep.experiments({**LAG, "compare": {"methods": ["fedlag"], "seeds": 2}}, *words)
    rows = sweep.rows(sweep.sweep(found, tmp_path, workers=1), found, words)
    known = {(row["method"], row["personal.k"], row["seeds"]) for row in rows}
    assert {("local", None, 2), ("fedlag", 0, 2), ("fedlag", 1, 2)} < known
    assert len(known) == len(rows)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("personal.k", "sweeps nothing"),
        ("personal.k=", "sweeps nothing"),
        ("=1,2", "sweeps nothing"),
        ("seeds=1,2", "`seed=0,7` says which"),
        ("seeds=0", "seeds = 0 is not allowed"),
        ("personal.q=1,2", "Unknown setting 'personal.q'"),
        ("personal.k=1,-1", "personal.k = -1 is not allowed"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(word, sentence):
    with pytest.raises(InputError) as error:
        sweep.experiments(LAG, word)
    assert sentence in str(error.value)


def test_every_table_of_the_store_has_the_settings_as_columns(tmp_path):
    made = sweep.sweep(sweep.experiments(LAG, "algorithm=fedprox,fedlag", "personal.k=0,1"), tmp_path, workers=1)
    runs = pq.read_table(made / "runs.parquet")
    assert len(runs) == 4
    assert runs["algorithm.mu"].null_count == 2  # a setting of FedProx
    for row in runs.to_pylist():
        run = results.summarise(results.read(tmp_path / row["run"]))
        assert row["accuracy"] == run.headline.mean
        assert experiment.load(tmp_path / row["run"] / "experiment.toml").model.hidden == tuple(
            json.loads(row["model.hidden"])
        )
    for table in gather.TABLES:
        data = pyarrow.dataset.dataset(made / table)
        for k in (0, 1):
            mine = data.to_table(filter=(pc.field("personal.k") == k) & (pc.field("method") == "fedlag"))
            (name,) = set(mine["run"].to_pylist())
            whole = getattr(results.read(tmp_path / name), table)
            assert mine.select(whole.column_names).equals(whole)


def test_a_sweep_goes_on_where_another_stopped_and_both_share_the_store(tmp_path):
    made = sweep.sweep(sweep.experiments(LAG, "personal.k=0,1"), tmp_path, workers=1)
    manifests = {path: path.read_bytes() for path in tmp_path.glob("*/manifest.json")}
    files = {path: path.stat().st_mtime_ns for path in made.glob("*/*.parquet")}
    again = sweep.experiments(LAG, "personal.k=0,1,2")
    sweep.sweep(again, tmp_path, workers=1)
    assert len(gather.read(made)) == 3
    assert all(path.read_bytes() == content for path, content in manifests.items())
    assert all(path.stat().st_mtime_ns == time for path, time in files.items())


def test_an_interrupted_sweep_keeps_what_is_finished(tmp_path):
    found = sweep.experiments(LAG, "personal.k=0,1")

    def stop(one, event):
        if one == found[1]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(found, tmp_path, workers=1, watch=stop)
    (row,) = gather.read(tmp_path / gather.NAME).to_pylist()
    assert row["personal.k"] == 0
    assert len(gather.read(sweep.sweep(found, tmp_path, workers=1))) == 2


def test_runs_that_are_gone_leave_the_store(tmp_path):
    made = sweep.sweep(sweep.experiments(LAG, "personal.k=0,1", "rounds=1"), tmp_path, workers=1)
    gone = gather.read(made)["run"][0].as_py()
    (tmp_path / gone / "manifest.json").unlink()
    gather.gather(tmp_path)
    assert gone not in gather.read(made)["run"].to_pylist()
    assert not list(made.rglob(f"{gone}.parquet"))


def test_a_sweep_from_the_command_line_says_what_came_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "algorithm=fedlag", "personal.k=0,1", *WORDS, "seeds=2", "--workers", "1"]
    done = CliRunner().invoke(cli.main, [*words, "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(row["method"], row["personal.k"], row["seeds"]) for row in rows] == [
        ("fedlag", 0, 2),
        ("fedlag", 1, 2),
    ]
    assert (Path("runs/sweep/results/runs.parquet")).exists()
    done = CliRunner().invoke(cli.main, words)
    assert "fedlag" in done.output
    assert "runs/sweep/results" in done.output


def test_the_queries_of_the_documentation_are_answered(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = sweep.sweep(sweep.experiments(LAG, "personal.k=0,1", "rounds=1"), Path("runs/sweep"), workers=1)
    page = (Path(__file__).parents[1] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    asked = 0
    for language, lines in re.findall(r"```(sql|python)\n(.*?)```", page, re.DOTALL):
        package = "duckdb" if language == "sql" else re.search(r"import (\w+)", lines)[1]
        if importlib.util.find_spec(package) is None:
            continue
        if language == "sql":
            rows = importlib.import_module("duckdb").sql(lines).fetchall()
            expected = sorted((run["personal.k"], run["accuracy"], 1) for run in gather.read(made).to_pylist())
            assert [(k, accuracy, seeds) for k, accuracy, _, seeds in rows] == expected
        else:
            exec(compile(lines, "sweeps.md", "exec"), {})
            assert "personal.k" in capsys.readouterr().out
        asked += 1
    assert asked
