"""The same bits in one process, in Flower's simulation, and with a SuperLink and four SuperNodes of their own."""

import pytest
from click.testing import CliRunner

from fedlag import experiment
from fedlag.cli import main
from fedlag.flower.store import Store
from fedlag.results import read
from flower.deployment import deployment, until
from flower.runs import in_process, same, scores, server_of

pytestmark = pytest.mark.slow

CLIENTS = 4
SETTINGS = (
    *("algorithm=scaffold", "personal.kind=lag", "personal.k=1", "personal.warmup=1", "rounds=3", "evaluate_every=3"),
    "federation=sequential",  # the reference; what is chosen by itself equals it up to rounding
    *("data.clients=4", "data.limit=300", "data.split=classes", "data.classes_per_client=3"),
    *("model.hidden=[8, 8]", "training.batch=10", "training.lr=0.1", "training.epochs=3"),
)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """Written by the command that people use."""
    folder = tmp_path_factory.mktemp("app") / "four-sites"
    done = CliRunner().invoke(main, ["flower", "new", str(folder), *SETTINGS])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def expected(app, tmp_path_factory):
    return process(app, tmp_path_factory.mktemp("expected"))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    with deployment(tmp_path_factory.mktemp("deployment"), nodes=CLIENTS) as made:
        yield made


def process(app, folder, *changes, absent=()):
    """The app's experiment in this process."""
    one = experiment.load(app / "four_sites" / "experiment.toml", *changes)
    return in_process(one, folder, absent)


def agree(folder, expected):
    one = experiment.load(expected / "experiment.toml")
    assert experiment.load(folder / "experiment.toml") == one
    assert any(row["personal"] for row in read(expected).layers.to_pylist()), "nothing ever became personal"
    assert same(server_of(folder), server_of(expected))
    assert scores(folder) == scores(expected)


def test_a_deployment_gives_the_same_bits_as_one_process(app, expected, deployed):
    done = deployed.run(app, folder="plain", minimum=CLIENTS, timeout=300.0)
    assert done.status == "finished:completed", done.log
    agree(deployed.folder / "plain", expected)


def test_the_simulation_gives_the_same_bits_as_one_process(app, expected, tmp_path):
    resources = "client-resources-num-cpus=1 client-resources-num-gpus=0.0 init-args-num-cpus=2"
    with deployment(tmp_path, simulation=True) as simulation:
        done = simulation.run(
            app, federation=f"num-supernodes={CLIENTS} {resources}", folder="plain", minimum=CLIENTS, timeout=300.0
        )
        assert done.status == "finished:completed", done.log + simulation.log("superlink")
        agree(tmp_path / "plain", expected)


def test_killed_nodes_and_a_killed_server_leave_the_others_bits_as_they_are(app, deployed, tmp_path):
    """A node dies in round 2 and comes back; the SuperLink dies in round 4 and the run is started again."""
    folder, changes = deployed.folder / "killed", "rounds=5 evaluate_every=5"
    config = {"folder": "killed", "minimum": 2, "timeout": 60.0, "changes": changes}
    deployed.submit(app, **config)
    until(lambda: rounds_of(folder) >= 1, "round 1 ends")
    until(lambda: "ROUND 2" in log_of_run(deployed, "node-2"), "client 2 is called to round 2")
    deployed.restart("node-2")
    until(lambda: rounds_of(folder) >= 3, "round 3 ends", patience=300)
    name = (folder / "federation").read_text()
    until(lambda: 3 in Store.of(deployed.store, name, 0).rounds(), "client 0 has trained round 4")
    deployed.restart("superlink")
    done = deployed.run(app, **config)
    assert done.status == "finished:completed", done.log
    dropped = [(row["round"], row["client"]) for row in read(folder).dropped.to_pylist()]
    assert (2, 2) in dropped
    agree(folder, process(app, tmp_path, *changes.split(), absent=dropped))


def rounds_of(folder):
    path = folder / "events.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def log_of_run(deployed, name):
    """Of the latest run."""
    return deployed.log(name).rpartition("ROUND 1]")[2]
