"""An experiment file says everything, is read once and strictly, and round-trips."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlag import cli, experiment
from fedlag.algorithm import Training
from fedlag.algorithms import REGISTRY
from fedlag.errors import InputError
from fedlag.lag import LAG
from fedlag.optim import Adam
from fedlag.personal import Named, RandomLayers, WarmStart


@pytest.mark.parametrize("name", REGISTRY)
def test_what_an_experiment_writes_it_reads_back(name):
    one = experiment.load({"algorithm": name, "model": {"name": "cnn20", "norm": "group"}}, "data.alpha=0.5")
    again = experiment.load(tomllib.loads(one.toml()))
    assert again == one
    assert again.hash == one.hash


@given(
    k=st.integers(0, 20),
    xi=st.floats(-0.99, 0, exclude_min=True),
    warmup=st.integers(0, 50),
    lr=st.floats(1e-6, 10),
    seed=st.integers(0, 1000),
)
def test_every_setting_survives_the_file(k, xi, warmup, lr, seed):
    given = {"algorithm": "fedlag", "personal": {"k": k, "xi": xi, "warmup": warmup}, "training": {"lr": lr}}
    one = experiment.load({**given, "seed": seed})
    assert experiment.load(tomllib.loads(one.toml())) == one
    assert one.algorithm.personal == LAG(k=k, xi=xi, warmup=warmup)


def test_a_run_is_named_by_what_determines_it_and_by_nothing_else():
    one = experiment.load({"algorithm": "fedlag"})
    assert experiment.load({"algorithm": "fedlag"}, "label=ours", "data.root=/elsewhere").hash == one.hash
    assert experiment.load({"algorithm": "fedlag"}, "personal.k=4").hash != one.hash
    assert experiment.load({"algorithm": "fedlag"}, "seed=1").hash != one.hash


def test_personal_settings_change_the_methods_own_rule_or_add_lag():
    assert experiment.load({"algorithm": "fedlag"}, "personal.k=3").algorithm.personal == LAG(k=3)
    assert experiment.load({"algorithm": "warmstart"}, "personal.warmup=3").algorithm.personal == WarmStart(warmup=3)
    added = experiment.load({"algorithm": "fedper"}, "personal.k=3").algorithm.personal
    assert experiment.flat(added) == [Named("head.*"), LAG(k=3)]
    named = experiment.load({"algorithm": "fedavg", "personal": "random"}).algorithm.personal
    assert named == RandomLayers()
    both = experiment.load({"personal": [{"kind": "named", "pattern": "head.*"}, {"kind": "lag", "k": 1}]})
    assert experiment.flat(both.algorithm.personal) == [Named("head.*"), LAG(k=1)]


def test_the_optimiser_of_training_is_named_and_set_in_one_table():
    one = experiment.load({}, "training.optimizer=adam", "training.lr=0.01", "training.epochs=3")
    assert one.training == Training(epochs=3, optimizer=Adam(lr=0.01))


def test_a_comparison_is_one_experiment_for_every_method_and_seed():
    labelled = {"name": "fedlag", "label": "k=2", "personal": {"k": 2}}
    base = {
        "rounds": 3,
        "personal": {"warmup": 2, "k": 1},
        "compare": {
            "methods": ["local", "warmstart", labelled],
            "seeds": 2,
        },
    }
    made = experiment.variants(base)
    assert [(one.title, one.seed, one.data.seed) for one in made[:6]] == [
        ("local", 0, 0),
        ("local", 1, 1),
        ("warmstart", 0, 0),
        ("warmstart", 1, 1),
        ("k=2", 0, 0),
        ("k=2", 1, 1),
    ]
    assert made[0].algorithm.personal == Named("*")  # shared [personal] settings reach only rules that know them
    assert made[2].algorithm.personal == WarmStart(warmup=2)
    assert made[4].algorithm.personal == LAG(k=2)
    fixed = experiment.variants({**base, "compare": {**base["compare"], "redraw": False}})
    assert {one.data.seed for one in fixed} == {0}


def test_a_comparison_has_its_controls_whoever_forgot_them():
    def titles(*methods):
        return [one.title for one in experiment.variants({"compare": {"methods": methods, "seeds": 1}})]

    assert titles("fedrep") == ["fedrep", "local", "fedavg", "fedavg-ft"]
    assert titles("fedavg", "warmstart") == ["fedavg", "warmstart", "local", "fedavg-ft"]
    assert titles("fedlag")[1:] == ["local", "fedavg", "fedavg-ft", "warmstart", "random-layers"]
    assert titles("random-layers", "fedlag-frozen", "local")[3:] == ["fedavg", "fedavg-ft", "warmstart"]
    assert titles({"name": "local", "label": "mine"}) == ["mine", "local", "fedavg", "fedavg-ft"]


def test_controls_of_lag_have_its_settings_and_draw_anew_for_every_seed():
    methods = ["fedrep", {"name": "fedprox", "personal": {"kind": "lag", "k": 3, "warmup": 4}}]
    made = {(one.title, one.seed): one for one in experiment.variants({"compare": {"methods": methods, "seeds": 2}})}
    assert made["warmstart", 0].algorithm.personal == WarmStart(warmup=4)
    for seed in (0, 1):
        assert made["random-layers", seed].algorithm.personal == RandomLayers(k=3, warmup=4, seed=seed)


def test_a_method_of_a_comparison_may_train_in_its_own_way():
    methods = ["local", {"name": "fedavg", "training": {"lr": 0.3}}]
    base = {"training": {"lr": 0.1, "batch": 5}, "compare": {"methods": methods, "seeds": 1}}
    lrs = {one.title: (one.training.optimizer.lr, one.training.batch) for one in experiment.variants(base)}
    assert lrs == {"local": (0.1, 5), "fedavg": (0.3, 5), "fedavg-ft": (0.1, 5)}


def test_a_comparison_may_bring_every_method_that_can_take_lag_once_more_with_it():
    methods = ["fedrep", "local", "fedlag", "warmstart", "fedaf", "centralised", {"name": "fedprox", "label": "mine"}]
    made = {
        one.title: one for one in experiment.variants({"compare": {"methods": methods, "lag": {"k": 1}, "seeds": 1}})
    }
    added = ["fedavg", "fedavg-ft", "random-layers"]
    assert list(made)[len(methods) :] == ["fedrep+lag", "mine+lag", *added]
    assert made["fedrep+lag"].algorithm.personal == Named("head.*") | LAG(k=1)
    assert made["mine+lag"].algorithm.personal == LAG(k=1)


def test_a_comparison_may_be_of_all_methods():
    made = experiment.variants({"compare": {"methods": "all", "seeds": 1}})
    assert [one.method for one in made] == list(REGISTRY)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm=fedlg", ["fedlg", "Did you mean 'fedlag'"]),
        ("personal.k=-1", ["personal.k", "-1", "0 upwards"]),
        ("personal.xi=0.2", ["personal.xi", "0.2", "at most 0"]),
        ("personal.xi=-1", ["personal.xi", "above -1"]),
        ("personal.mode=icy", ["personal.mode", "icy", "'frozen'"]),
        ("personal.kk=1", ["personal.kk", "Did you mean 'personal.k'"]),
        ("personal.kind=lagg", ["lagg", "Did you mean 'lag'"]),
        ("data.alpha=0", ["data.alpha", "greater than 0"]),
        ("data.alph=1", ["data.alph", "Did you mean 'data.alpha'"]),
        ("data.clients=2.5", ["data.clients", "2.5", "whole number"]),
        ("training.lrr=1", ["training.lrr", "Did you mean 'training.lr'"]),
        ("training.lr=fast", ["training.lr", "fast", "a number"]),
        ("training.lr=-1", ["training.lr", "-1", "above 0"]),
        ("training.optimizer=sdg", ["sdg", "Did you mean 'sgd'"]),
        ("rounds=0", ["rounds", "1 upwards"]),
        ("rounds=true", ["rounds", "True", "whole number"]),
        ("sampling.fraction=1.5", ["sampling.fraction", "1.5", "at most 1"]),
        ("model.name=resnet8", ["resnet8", "Did you mean 'resnet18'"]),
        ("model.norm=layer", ["norm", "layer", "'batch'"]),
        ("algorithm.mu=1", ["algorithm.mu", "setting"]),
        ("compare.seeds=0", ["compare.seeds", "1 upwards"]),
        ("compare.methods=some", ["compare.methods", "some", "'all'"]),
        ("compare.lag.kk=1", ["personal.kk", "Did you mean 'personal.k'"]),
        ("seed.x=1", ["seed.x"]),
        ("rounds", ["key=value"]),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence_that_names_it(override, words):
    with pytest.raises(InputError) as refusal:
        experiment.variants(experiment.settings({"algorithm": "fedlag", "seed": 1}, override))
    assert all(word in str(refusal.value) for word in words), refusal.value
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        experiment.load(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(InputError, match=r"bad\.toml is not valid TOML"):
        experiment.load(tmp_path / "bad.toml")


def test_the_settings_the_shell_completes_exist():
    for key in cli.SETTINGS:
        with pytest.raises(InputError, match=r"is not allowed|must be|Unknown (?!setting)") as refusal:
            experiment.load({"algorithm": "fedlag"}, f"{key}=[[]]")
        assert "Unknown setting" not in str(refusal.value)
