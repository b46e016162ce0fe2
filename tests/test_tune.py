"""Every method tries the same learning rates, is judged on validation data, and its trials are counted."""

import json
import tomllib
from collections import Counter

import pytest
from click.testing import CliRunner

from fedlag import cli, comparison, execution, experiment, results, tune
from fedlag.errors import InputError

SMALL = {
    "rounds": 2,
    "data": {"clients": 4, "alpha": 0.5, "limit": 200},
    "model": {"hidden": [8]},
    "personal": {"k": 1, "warmup": 1},
    "compare": {"methods": ["local", "fedlag", {"name": "fedprox", "mu": 0.1}], "seeds": 2},
    "tune": {"lr": [0.0001, 0.1, 0.2], "seeds": 2},
}
LINE_UP = ["local", "fedlag", "fedprox", "fedavg", "fedavg-ft", "warmstart", "random-layers"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    return folder, *tune.tune(SMALL, folder, workers=1)


def test_every_method_tries_the_same_rates_over_the_same_seeds():
    tried = Counter()
    for entry, lr, seeds in tune.trials(SMALL):
        assert [one.training.optimizer.lr for one in seeds] == [lr, lr]
        tried[entry["name"], lr] += len({(one.seed, one.data.seed) for one in seeds})
    assert tried == {(name, lr): 2 for name in LINE_UP for lr in (0.0001, 0.1, 0.2)}


def test_the_rate_with_the_highest_validation_accuracy_is_chosen(tuned):
    """Recomputed from the trials on disk; test data are not looked at."""
    folder, choices, _ = tuned
    assert [one.method for one in choices] == LINE_UP
    for choice in choices:
        accuracy = {}
        for path in folder.glob(f"{choice.method}-s*"):
            run = results.read(path)
            validation = results.grid(run, "personal", "validation").means().max()
            accuracy.setdefault(run.experiment["training"]["lr"], []).append(validation)
        assert {lr: pytest.approx(sum(own) / 2) for lr, own in accuracy.items()} == choice.accuracy
        assert choice.accuracy[choice.lr] == max(choice.accuracy.values())
        assert choice.trials == 6
    assert any(choice.lr != 0.0001 for choice in choices)
    assert {choice.at_the_edge for choice in choices if choice.lr == 0.1} <= {False}


def test_what_is_written_is_what_to_compare_and_knows_its_trials(tuned, tmp_path):
    folder, choices, base = tuned
    written = tomllib.loads((folder / "tuned.toml").read_text())
    assert written == json.loads(json.dumps(base))
    experiments = experiment.variants(written)
    assert experiment.controls(written) == []
    assert [one.title for one in experiments[::2]] == LINE_UP
    rates = {choice.method: choice.lr for choice in choices}
    for one in experiments:
        assert one.training.optimizer.lr == rates[one.title]
        assert one.trials == 6
    compared = comparison.compare(experiments[:4], tmp_path, workers=1)
    assert [row["trials"] for row in results.rows(compared)] == [6, 6]
    assert [row["trials"] for row in results.standings(compared)] == ["6", "6"]


def test_trials_that_are_there_are_not_run_again(tuned, monkeypatch):
    folder, choices, _ = tuned

    def never(*_):
        raise AssertionError("it was run again")

    monkeypatch.setattr(execution, "_work", never)
    again, _ = tune.tune(SMALL, folder, workers=1)
    assert again == choices


def test_how_often_was_tried_does_not_name_a_run_and_is_told_all_the_same(tmp_path):
    one = experiment.load({**SMALL, "trials": 5})
    assert one.hash == experiment.load(SMALL).hash
    execution.execute(experiment.load(SMALL), tmp_path / "run")
    assert results.summarise(results.read(tmp_path / "run")).trials == 0
    execution.execute(one, tmp_path / "run")
    assert results.summarise(results.read(tmp_path / "run")).trials == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": [0.1]}, "tune.lr = [0.1] is not allowed; it must be two"),
        ({"lr": [0.1, 0]}, "tune.lr = 0"),
        ({"seeds": 0}, "tune.seeds = 0"),
        ({"lrs": [1]}, "Did you mean 'tune.lr'"),
    ],
)
def test_a_grid_that_is_none_is_refused(settings, words):
    with pytest.raises(InputError) as refusal:
        tune.trials({**SMALL, "tune": settings})
    assert words in str(refusal.value)


def test_the_command_says_what_was_chosen_and_what_to_do_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["rounds=1", "data.clients=3", "data.limit=120", "model.hidden=[4]", 'compare.methods=["local"]']
    call = ["tune", *words, "tune.lr=[0.001,0.1]", "--workers", "1"]
    done = CliRunner().invoke(cli.main, call)
    assert done.exit_code == 0, done.output
    assert "Now: fedlag compare runs/tune-demo/tuned.toml" in done.output
    report = json.loads(CliRunner().invoke(cli.main, [*call, "--json"]).output)
    assert [one["method"] for one in report] == ["local", "fedavg", "fedavg-ft"]
    assert all(one["trials"] == 2 for one in report)
