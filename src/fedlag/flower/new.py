"""`fedlag flower new`: a Flower app that runs an experiment."""

from __future__ import annotations

import re
from pathlib import Path

from fedlag.errors import InputError
from fedlag.experiment import Experiment
from fedlag.files import write_atomically, writing

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{title} on {clients} clients, with fedlag"
license = "Apache-2.0"
dependencies = []  # every machine has fedlag[flower] already; Flower must not install it anew for every message

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedlag"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
changes = ""     # of {package}/experiment.toml, such as "rounds=5 training.lr=0.1"
folder = ""      # of the run, on the server; below the SuperLink's own folder, runs/... if empty
timeout = 600.0  # seconds a client is waited for
minimum = {minimum}      # replies a round needs to count
"""

SERVER = '''\
"""The server: the experiment beside this file, on whatever clients are there."""

from fedlag.flower.server_app import server_app

app = server_app(__file__)
'''

CLIENT = '''\
"""A client: its data, its personal layers, and the experiment beside this file."""

from fedlag.flower.client_app import client_app

app = client_app(__file__)
'''


def new(folder: Path, experiment: Experiment) -> list[Path]:
    """Write the app; returns its files."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name or name[0].isdigit():
        raise InputError(f"{folder} cannot name an app: its name must begin with a letter, such as my-federation.")
    package = name.replace("-", "_")
    if package in ("fedlag", "flwr", "torch"):
        raise InputError(f"{folder} cannot name an app: {package} is a package that it uses; choose another name.")
    if experiment.algorithm.pooled:
        raise InputError(f"{experiment.method} pools everybody's examples; on Flower they stay where they are.")
    if experiment.device != "cpu":
        raise InputError(f"device = {experiment.device!r}, but this app trains on the processor; use device = 'cpu'.")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a folder that does not exist yet.")
    cohort = len(experiment.sampling.cohort(experiment.data.clients, experiment.seed, 0))
    project = PROJECT.format(
        name=name,
        package=package,
        title=experiment.title,
        clients=experiment.data.clients,
        minimum=max(1, cohort // 2),
    )
    contents = {
        "pyproject.toml": project,
        f"{package}/__init__.py": "",
        f"{package}/server_app.py": SERVER,
        f"{package}/client_app.py": CLIENT,
        f"{package}/experiment.toml": experiment.toml(),
    }
    with writing(folder):
        (folder / package).mkdir(parents=True, exist_ok=True)
    for path, text in contents.items():
        write_atomically(folder / path, text.encode())
    return [folder / path for path in contents]
