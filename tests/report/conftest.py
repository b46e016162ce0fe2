"""A small comparison, run once."""

import pytest
from click.testing import CliRunner

from fedlag import cli

SMALL = ("rounds=6", "data.clients=6", "data.limit=500", "model.hidden=[12]", "personal.warmup=2", "personal.k=1")
CHOICE = 'compare.methods=["local", "fedavg", "fedavg-ft", "fedlag"]'


def fedlag(*words):
    result = CliRunner().invoke(cli.main, list(map(str, words)), prog_name="fedlag")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The folder of a comparison of four methods over two seeds."""
    folder = tmp_path_factory.mktemp("report") / "runs"
    done = fedlag("compare", "--workers", "1", "--out", folder, CHOICE, "compare.seeds=2", *SMALL)
    assert done.exit_code == 0
    return folder


@pytest.fixture(scope="session")
def page(runs, tmp_path_factory):
    """The report about it."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    done = fedlag("report", runs, "-o", path)
    assert done.exit_code == 0
    assert str(path) in done.stdout.replace("\n", "")
    return path
