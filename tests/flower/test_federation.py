"""A run over Flower's messages is the run in this process, bit for bit; only what is shared travels."""

import pytest
import torch

from fedlag import checkpoint, execution, experiment
from fedlag.algorithms import REGISTRY
from fedlag.experiment import can_take_lag
from fedlag.flower.server_app import Settings, run
from fedlag.results import read
from flower.grids import Local

SMALL = {
    "rounds": 4,
    "evaluate_every": 2,
    "data": {"clients": 4, "limit": 200, "alpha": 1.0},
    "model": {"name": "mlp", "hidden": [8, 8]},
    "training": {"batch": 10, "lr": 0.1},
}
LAG = {"kind": "lag", "k": 1, "warmup": 2}
SETTINGS = Settings(timeout=30.0)


def app(folder, **changes):
    """An experiment, and a folder with its experiment.toml."""
    one = experiment.load({**SMALL, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.toml").write_text(one.toml())
    return one


def on_flower(one, folder, faults=None, settings=SETTINGS, grid=None):
    """Runs it; returns the grid and the run's folder."""
    grid = grid or Local(folder, folder / "store", one.data.clients, faults)
    made = run(one, grid, Settings(**{**vars(settings), "folder": str(folder / "run")}))
    return grid, made


def in_process(one, folder, **options):
    return execution.execute(one, folder / "in-process", **options)


def server_of(folder):
    one = experiment.load(folder / "experiment.toml")
    saved = checkpoint.load(folder, one.hash, execution.prepare(one).server)
    return saved[0]


def same(a, b):
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def scores(folder):
    """Those of clients' own models; the server's copy of personal layers is not scored on Flower."""
    return [row for row in read(folder).rounds.to_pylist() if row["stage"] != "global"]


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch):
    monkeypatch.setattr("fedlag.files.os.fsync", lambda handle: None)


METHODS = [name for name in REGISTRY if not REGISTRY[name]().pooled]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_bits_as_in_one_process(tmp_path, method):
    """With LAG, where it can take it."""
    one = app(tmp_path, algorithm=method, **({"personal": LAG} if can_take_lag(method) else {}))
    _, folder = on_flower(one, tmp_path)
    expected = in_process(one, tmp_path)
    assert same(server_of(folder), server_of(expected))
    assert scores(folder) == scores(expected)
