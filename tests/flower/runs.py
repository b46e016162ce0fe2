"""Small runs over Flower's messages, and the same in this process."""

import dataclasses

import torch

from fedlag import checkpoint, execution, experiment
from fedlag.flower.server_app import Settings, run
from fedlag.results import read
from flower.grids import Local

SMALL = {
    "rounds": 4,
    "federation": "sequential",  # the reference; what is chosen by itself equals it up to rounding
    "evaluate_every": 2,
    "data": {"clients": 4, "limit": 300, "split": "classes", "classes_per_client": 3},
    "model": {"name": "mlp", "hidden": [8, 8]},
    "training": {"batch": 10, "lr": 0.1, "epochs": 3},
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


def in_process(one, folder, absent=(), least=1):
    """The same experiment where some clients, given as (round from 1, client), never heard of the round."""

    def prepare(one, workers=None):
        parts = execution.prepare(one, workers)
        return dataclasses.replace(parts, federation=Absent(parts.federation, frozenset(absent)), least=least)

    return execution.execute(one, folder / "in-process", prepare=prepare)


class Absent:
    """Passes on what is asked of the others."""

    def __init__(self, inner, absent):
        self.inner = inner
        self.absent = absent

    def train(self, message, letters, scored=()):
        there = {client: letters[client] for client in letters if (message.round + 1, client) not in self.absent}
        return self.inner.train(message, there, scored)

    def __getattr__(self, name):
        return getattr(self.inner, name)


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
    """Of clients' own models; the server's copy of personal layers is not scored on Flower."""
    return [row for row in read(folder).rounds.to_pylist() if row["stage"] in ("personal", "trained")]
