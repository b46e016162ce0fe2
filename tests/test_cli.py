"""The command line, from end to end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from fedlag import cli

QUICK = ["rounds=3", "data.clients=5", "data.alpha=0.5", "model.hidden=[8]", "training.lr=0.1"]


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run a command in an empty folder; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(cli.main, list(map(str, words)), prog_name="fedlag")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


def test_help_names_every_command_and_does_not_load_torch():
    lines = ["import sys", "from fedlag import cli", "cli.main(['--help'], standalone_mode=False)"]
    script = "; ".join([*lines, "print('torch' in sys.modules)"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
    assert all(name in done.stdout for name in cli.main.commands)


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "fedlag", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fedlag, version ")


def test_a_run_says_what_came_out_and_where_it_lies(call):
    code, out, _ = call("run", "algorithm=fedlag", "personal.warmup=1", "personal.k=1", *QUICK)
    assert code == 0
    assert "FedLAG, seed 0: 3 rounds" in out
    assert "best on test" in out
    assert max(map(len, out.splitlines())) <= 80
    (folder,) = Path("runs").iterdir()
    code, out, _ = call("show", folder, "--json")
    (row,) = json.loads(out)
    assert row["method"] == "fedlag"
    assert 0 <= row["accuracy"] <= 1
    assert [moment["round"] for moment in row["course"]] == [1, 2, 3]
    assert row["course"][-1]["up_bytes"] == row["up_bytes"]
    code, out, _ = call("list", "runs", "--json")
    assert json.loads(out)[0]["run"] == str(folder)


def test_an_experiment_file_is_changed_by_dotted_overrides(call, tmp_path):
    (tmp_path / "experiment.toml").write_text("rounds = 2\n[data]\nclients = 4\nalpha = 1.0\n[model]\nhidden = [4]\n")
    code, out, _ = call(
        "run", "experiment.toml", "algorithm=fedper", "personal.k=1", "data.alpha=0.5", "--out", "here", "--json"
    )
    assert code == 0
    written = (tmp_path / "here" / "experiment.toml").read_text()
    assert 'name = "fedper"' in written
    assert 'kind = "lag"' in written
    assert "alpha = 0.5" in written
    assert json.loads(out)[0]["rounds"] == 2


def test_a_comparison_ends_with_a_table_a_sentence_and_the_place(call):
    methods = 'compare.methods=["local","fedavg","fedlag"]'
    words = ["compare", methods, "compare.seeds=1", "personal.warmup=1", *QUICK, "--workers", "2"]
    code, out, _ = call(*words)
    assert code == 0
    assert "of 5 clients" in out
    assert "by a single seed" in out
    assert "Results: runs/compare-demo" in out
    assert max(len(line) for line in out.splitlines() if line.startswith(" ")) <= 80  # sentences may be longer
    report = json.loads(Path("runs/compare-demo/comparison.json").read_text())
    assert [row["method"] for row in report["methods"]] == [
        *("local", "fedavg", "fedlag", "fedavg-ft", "warmstart", "random-layers")
    ]
    assert [row["method"] for row in report["methods"] if row["added"]] == ["fedavg-ft", "warmstart", "random-layers"]
    assert "random-layers *" in out
    assert report["verdict"] in out.replace("\n", " ")
    code, again, _ = call(*words, "--json")  # everything is there already
    assert json.loads(again) == report


def test_an_interrupted_run_is_resumed(call, tmp_path):
    from fedlag import execution, experiment

    class Stop(Exception):
        pass

    def stop(event):
        raise Stop

    one = experiment.load({}, *QUICK)
    with pytest.raises(Stop):
        execution.execute(one, tmp_path / "run", stop)
    code, out, _ = call("resume", "run", "--json")
    assert code == 0
    assert json.loads(out)[0]["rounds"] == 3


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups to interrupt")
@pytest.mark.parametrize("by", ["Ctrl-C", "kill"])
def test_an_interrupted_comparison_ends_at_once_and_takes_its_processes_along(tmp_path, by):
    words = [sys.executable, "-m", "fedlag", "compare", "rounds=100000", "--workers", "2"]
    process = subprocess.Popen(words, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        while not list(tmp_path.glob("runs/*/*/events.jsonl")):
            assert process.poll() is None
            time.sleep(0.1)
        if by == "kill":
            process.terminate()  # of the others nobody knows
        else:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Interrupted" in err
        assert is_gone(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def is_gone(group: int) -> bool:
    """Whether, within half a minute, no process of the group is left."""
    for _ in range(300):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_the_theory_is_put_beside_what_is_measured(call, tmp_path):
    code, out, _ = call("lemma", *QUICK, "--rounds", "2", "--json")
    assert code == 0
    found = json.loads(out)
    assert json.loads((tmp_path / "runs/lemma/lemma.json").read_text()) == found
    assert [len(cases) for cases in found["kept"].values()] == [6, 6, 4, 4]  # rounds times layers
    assert len(found["bounds"]) == 2 * 3 * 3


@pytest.mark.parametrize("what", ["methods", "models", "data"])
def test_what_there_is_can_be_listed(call, what):
    code, out, _ = call("list", what, "--json")
    assert code == 0
    rows = json.loads(out)
    assert rows
    names = [next(iter(row.values())) for row in rows]
    code, table, _ = call("list", what)
    assert all(name in table for name in names)


def test_nothing_to_list_is_said(call):
    code, out, _ = call("list", "runs")
    assert code == 0
    assert "No runs in runs." in out


def test_a_split_is_shown_before_anything_is_trained(call):
    code, out, _ = call("data", "data.clients=4", "--json")
    assert code == 0
    report = json.loads(out)
    assert len(report["clients"]) == 4
    code, out, _ = call("data", "data.clients=4")
    assert report["hash"][:12] in out


def test_update_files_of_any_framework_are_analysed(call, tmp_path):
    for number, sign in enumerate([1.0, 1.0, -1.0]):
        save_file({"conv.weight": sign * torch.ones(3), "fc.weight": torch.ones(2)}, tmp_path / f"{number}.safetensors")
    code, out, _ = call("analyze", *sorted(map(str, tmp_path.glob("*.safetensors"))), "--json")
    assert code == 0
    rows = json.loads(out)
    assert [(row["layer"], row["count"], row["pairs"]) for row in rows] == [("conv", 2, 3), ("fc", 0, 3)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(call, shell):
    code, out, _ = call("completion", shell)
    assert code == 0
    assert "_FEDLAG_COMPLETE" in out


def test_completion_offers_methods_settings_and_files():
    def offered(text):
        return [item.value for item in cli._complete(None, None, text)]

    assert "algorithm=fedlag" in offered("algorithm=fedl")
    assert "training.lr=" in offered("training.")
    assert offered("exp") == ["exp"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "algorithm=fedlg"], "Did you mean 'fedlag'?"),
        (["run", "personal.k=-1"], "personal.k = -1 is not allowed"),
        (["run", "personal.xi=0.5"], "personal.xi = 0.5 is not allowed"),
        (["run", "data.alpha=0"], "data.alpha must be"),
        (["run", "data.alhpa=1"], "Unknown setting 'data.alhpa'. Did you mean 'data.alpha'?"),
        (["run", "data.clients=5000"], "5000 clients"),
        (["run", "data.name=mnist", "data.root=nowhere"], "nowhere"),
        (["run", "missing.toml"], "missing.toml cannot be read"),
        (["run", "a.toml", "b.toml"], "at most one experiment file"),
        (["resume", "nowhere"], "nowhere is not a run"),
        (["show", "nowhere"], "nowhere is not a run"),
        (["analyze", "nowhere.safetensors", "there.safetensors"], "nowhere.safetensors"),
        (["compare", "compare.seeds=0"], "compare.seeds = 0 is not allowed"),
        (["compare", "algorithm=fedlg"], "Did you mean 'fedlag'?"),
    ],
)
def test_bad_input_is_refused_with_one_sentence_exit_code_two_and_nothing_written(call, tmp_path, words, sentence):
    code, out, err = call(*words)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
    assert not out
    assert list(tmp_path.iterdir()) == []
