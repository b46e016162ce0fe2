"""Settings are told once: what all runs share, and what makes a method that method."""

from types import SimpleNamespace

import pytest

from fedlag import results
from fedlag.report import evidence, settings


@pytest.fixture(scope="module")
def found(runs):
    return evidence.gather([results.read(path.parent) for path in sorted(runs.glob("*/manifest.json"))])


def test_what_is_shared_and_what_is_own_make_the_experiment_but_for_seeds(found):
    shared, own = settings.common(found), settings.own(found)
    assert shared["data.clients"] == 6
    assert shared["training.batch"] == 10
    assert own["FedLAG"]["personal.kind"] == "lag"
    assert own["FedLAG"]["personal.k"] == 1
    assert own["FedAvg+FT"]["algorithm.name"] == "fedavg-ft"
    for method in own.values():
        assert not method.keys() & shared.keys()
        assert not method.keys() & {"seed", "data.seed"}


def run(**settings):
    return SimpleNamespace(experiment=settings, method="fedavg", seed=0, manifest={})


def test_where_data_lie_is_not_told():
    one = run(data={"name": "mnist", "root": "/home/somebody/data", "file": "/home/somebody/rows.npz"})
    found = SimpleNamespace(runs=(one,), methods=["fedavg"], of=lambda method: [one])
    assert settings.common(found) == {"data.name": "mnist"}


def test_two_rules_keep_their_settings_apart():
    one = run(personal=[{"kind": "named", "pattern": "head.*"}, {"kind": "lag", "k": 2}])
    assert settings.common(SimpleNamespace(runs=(one,))) == {
        "personal.0.kind": "named",
        "personal.0.pattern": "head.*",
        "personal.1.kind": "lag",
        "personal.1.k": 2,
    }


def test_versions_that_differ_are_all_told(found):
    assert settings.versions(found)["fedlag"]
    one, other = run(), run()
    one.manifest, other.manifest = {"versions": {"torch": "2.6"}}, {"versions": {"torch": "2.13"}}
    assert settings.versions(SimpleNamespace(runs=(one, other))) == {"torch": "2.6, 2.13"}
