"""The documented change turns an ordinary Flower app into FedLAG, and nothing else has to change."""

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from tests.flower.deployment import deployment
from tests.flower.nodes import Nodes

QUICKSTART = Path(__file__).parent / "quickstart"
DOCS = Path(__file__).parents[2] / "docs" / "flower-strategy.md"


def documented():
    """file -> [(lines before, lines after), …], from the diff in the documentation."""
    (diff,) = re.findall(r"```diff\n(.*?)```", DOCS.read_text(), re.DOTALL)
    changes = {}
    for line in diff.splitlines():
        if match := re.fullmatch(r"--- (\S+)", line):
            changes[match[1]] = hunks = []
        elif line.startswith("@@"):
            hunks.append(([], []))
        elif not line.startswith("+++"):
            before, after = hunks[-1]
            if line[:1] != "+":
                before.append(line[1:])
            if line[:1] != "-":
                after.append(line[1:])
    return changes


def changed(folder):
    """The quick-start with the change applied."""
    app = shutil.copytree(QUICKSTART, folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
    for name, hunks in documented().items():
        text = (app / name).read_text()
        for before, after in hunks:
            old, new = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
            assert text.count(old) == 1, f"{name} does not hold\n{old}"
            text = text.replace(old, new)
        (app / name).write_text(text)
    return app


def test_two_lines_and_their_imports_change():
    hunks = [hunk for hunks in documented().values() for hunk in hunks]
    added = [line for before, after in hunks for line in after if line not in before]
    assert len([line for line in added if "import" not in line]) == 2
    assert len(added) == 4


@pytest.fixture
def run_app(tmp_path, monkeypatch):
    """Runs an app's two halves in this process; returns the nodes and the final model."""
    monkeypatch.chdir(tmp_path)

    def run(app):
        monkeypatch.syspath_prepend(str(app))
        for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
            monkeypatch.delitem(sys.modules, name)
        client = importlib.import_module("quickstart.client_app").app
        server = importlib.import_module("quickstart.server_app").app
        config = {"num-server-rounds": 8, "local-epochs": 1, "learning-rate": 0.1}
        nodes = Nodes(client, tmp_path / "disks", **config)
        server(nodes, Context(1, 1, {}, RecordDict(), config))
        return nodes, torch.load("final_model.pt", weights_only=True)

    return run


def accuracy(nodes):
    """Mean of the last evaluation."""
    evaluations = [m for m in nodes.received if m.metadata.message_type == "evaluate"]
    return sum(m.content["metrics"]["accuracy"] for m in evaluations[-4:]) / 4


def test_sites_that_disagree_are_better_off(tmp_path, run_app):
    """Half the sites call the classes by other names: one model for all can be right about half."""
    nodes, model = run_app(changed(tmp_path))
    plain, plain_model = run_app(QUICKSTART)
    assert accuracy(plain) < 0.65
    assert accuracy(nodes) > 0.9
    assert model.keys() == plain_model.keys()
    assert len(nodes.sent[-1].content["arrays"]) < len(plain.sent[-1].content["arrays"])


@pytest.mark.slow
def test_the_changed_app_runs_in_flowers_simulation_engine(tmp_path):
    app = changed(tmp_path)
    resources = "client-resources-num-cpus=1 client-resources-num-gpus=0.0 init-args-num-cpus=1"
    with deployment(tmp_path / "there", simulation=True) as there:
        outcome = there.run(app, federation=f"num-supernodes=4 {resources}")
        assert outcome.status == "finished:completed", outcome.log
        assert "Personal from now on" in outcome.log
        assert "Not used" not in outcome.log
        files = sorted(path.parent.name for path in there.folder.glob("flwr/fedlag/*/*/round-*.safetensors"))
    assert files == sorted(2 * [f"site-{partition}" for partition in range(4)])
