"""What fedlag costs on Flower: beside Flower's own FedAvg, with the same model, data and training.

    python -m benchmarks.flower [--rounds 5] [--engine process] [--engine deployment] [--engine simulation]

`process` is the fresh ClientApp that a deployment starts for every message: its CPU seconds from the first import to
the reply. The engines are whole: both apps train and evaluate every client in every round, and a run of one round and
a run of several give the seconds of a round and those before the first. CPU seconds are those of all processes
together, and are what counts where the machine has other work. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower.deployment import Deployment, deployment
from flwr.app import ArrayRecord, RecordDict
from flwr.common.serde import recorddict_to_proto

from fedlag import experiment
from fedlag.birth import born
from fedlag.data.federated import federate
from fedlag.federation.work import HELD_OUT
from fedlag.flower import wire
from fedlag.flower.new import new
from fedlag.round import address, broadcast

ENGINES = ("process", "deployment", "simulation")
CLIENTS = 4
RESOURCES = "client-resources-num-cpus=1 client-resources-num-gpus=0.0 init-args-num-cpus=2"
SETTINGS = (
    *("algorithm=fedavg", f"data.clients={CLIENTS}", "data.alpha=1.0", "model.hidden=[200, 200]"),
    *("training.batch=10", "training.lr=0.1"),
)

PROJECT = """\
[project]
name = "plain"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "plain"

[tool.flwr.app.components]
serverapp = "plain.server_app:app"
clientapp = "plain.client_app:app"

[tool.flwr.app.config]
rounds = 1
"""

SERVER = """\
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from plain.task import Net

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(min_available_nodes=4)
    strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=context.run_config["rounds"])
"""

CLIENT = """\
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from plain.task import Net, load, test, train

app = ClientApp()
torch.set_num_threads(1)


def model_of(message):
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def trains(message, context):
    model, data = model_of(message), load(context.node_config["partition-id"], "train")
    loss = train(model, data)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluates(message, context):
    model, data = model_of(message), load(context.node_config["partition-id"], "test")
    loss, accuracy = test(model, data)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""

TASK = """\
from functools import cache

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedlag.data.federated import Data, federate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
        )

    def forward(self, x):
        return self.layers(x)


@cache
def load(client, part):
    return TensorDataset(*federate(Data(clients=4, alpha=1.0)).examples(client, part))


def train(model, data):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for x, y in DataLoader(data, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
    return total / len(data)


def test(model, data):
    loss, right = 0.0, 0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=1000):
            scores = model(x)
            loss += functional.cross_entropy(scores, y, reduction="sum").item()
            right += int((scores.argmax(1) == y).sum())
    return loss / len(data), right / len(data)
"""


def write_plain(folder: Path) -> Path:
    """An ordinary Flower app with FedAvg."""
    (folder / "plain").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("server_app", SERVER), ("client_app", CLIENT), ("task", TASK)):
        (folder / "plain" / f"{name}.py").write_text(text)
    return folder


# A fresh ClientApp

ASK = """
import sys
from pathlib import Path

import flwr.supernode.cli.flwr_clientapp
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto
from flwr.proto.recorddict_pb2 import RecordDict as Wire
from flwr.supercore.task_identity import TaskIdentity

folder, module, kind = sys.argv[1:]
sys.path.insert(0, folder)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
message = Message(recorddict_from_proto(Wire.FromString(Path(folder, "message").read_bytes())), 1, kind)
message.metadata.__dict__["_message_id"] = "1"
context = Context(1, 1, {"partition-id": 0, "fedlag-store": folder + "/store"}, RecordDict(), {})
app = __import__(module + ".client_app", fromlist=["app"]).app
reply = app(message, context)
assert reply.has_content(), reply.error
"""


def calls(experiment_file: Path) -> tuple[RecordDict, RecordDict]:
    """The first message of a run to client 0: fedlag's, and the same parameters as Flower's own app sends them."""
    one = experiment.load(experiment_file)
    dataset = federate(one.data).dataset
    task, server = born(one, dataset.x.shape[1:], dataset.classes, CLIENTS)
    ours = wire.write(wire.Call("0" * 16, 0, broadcast(task, server), address(task, server, 0), HELD_OUT))
    names = [f"layers.{layer}.{part}" for layer in (1, 3, 5) for part in ("weight", "bias")]
    return ours, RecordDict({"arrays": ArrayRecord(dict(zip(names, server.params.values(), strict=True)))})


def fresh(folder: Path, module: str, kind: str) -> float:
    """CPU seconds of a process that answers one message."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    subprocess.run([sys.executable, "-c", ASK, str(folder), module, kind], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_process(rounds: int, repeats: int) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as name:
        ours, plain = Path(name) / "ours", write_plain(Path(name) / "plain")
        new(ours, experiment.load({}, *SETTINGS))
        for folder, content in zip((ours, plain), calls(ours / "ours" / "experiment.toml"), strict=True):
            (folder / "message").write_bytes(recorddict_to_proto(content).SerializeToString())
        apps = {"Flower's FedAvg": (plain, "plain"), "fedlag": (ours, "ours")}
        seconds: dict[tuple[str, str], list[float]] = {}
        for _ in range(max(3, repeats)):
            for app, (folder, module) in apps.items():
                for kind in ("train", "evaluate"):
                    seconds.setdefault((app, kind), []).append(fresh(folder, module, kind))
    return [
        {"engine": "process", "app": app}
        | {f"CPU seconds to {kind}": round(median(seconds[app, kind]), 2) for kind in ("train", "evaluate")}
        for app in apps
    ]


# Whole engines


@contextmanager
def engine(kind: str, folder: Path) -> Iterator[Deployment]:
    simulation = kind == "simulation"
    with deployment(folder, nodes=0 if simulation else CLIENTS, simulation=simulation) as made:
        yield made


class Meter(threading.Thread):
    """CPU seconds of all processes of a deployment, looked at twice a second: those that end are not forgotten."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.mark = f"FLWR_HOME={folder / 'flwr'}".encode()
        self.ticks: dict[tuple[str, str], int] = {}  # (process, when it started) -> its own

    def run(self) -> None:
        while True:
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if self.mark in (process / "environ").read_bytes().split(b"\0"):
                        fields = (process / "stat").read_text().rpartition(")")[2].split()
                        self.ticks[process.name, fields[19]] = int(fields[11]) + int(fields[12])
                except OSError:
                    continue  # it has just ended
            time.sleep(0.5)

    def seconds(self) -> float:
        return sum(list(self.ticks.values())) / os.sysconf("SC_CLK_TCK")


def timed(made: Deployment, meter: Meter, app: Path, **config: object) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a run."""
    federation = f"num-supernodes={CLIENTS} {RESOURCES}" if made.simulation else ""
    wall, work = time.monotonic(), meter.seconds()
    done = made.run(app, federation=federation, **config)
    assert done.status == "finished:completed", done.log
    return time.monotonic() - wall, meter.seconds() - work


def measure(kind: str, rounds: int, repeats: int) -> list[dict[str, object]]:
    """Each app with one round and with several, in turns; start-up is what a run of no rounds would take."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        new(folder / "ours", experiment.load({}, *SETTINGS))
        plain = write_plain(folder / "plain")
        seconds: dict[tuple[str, int], list[tuple[float, float]]] = {}
        with engine(kind, folder / "engine") as made:
            meter = Meter(made.folder)
            meter.start()
            for repeat in range(repeats):
                for count in (1, rounds):
                    run = f"run-{repeat}-{count}"
                    ours = timed(made, meter, folder / "ours", folder=run, changes=f"rounds={count}", minimum=CLIENTS)
                    seconds.setdefault(("fedlag", count), []).append(ours)
                    seconds.setdefault(("Flower's FedAvg", count), []).append(timed(made, meter, plain, rounds=count))
    rows = []
    for app in ("Flower's FedAvg", "fedlag"):
        row: dict[str, object] = {"engine": kind, "app": app}
        for clock, name in enumerate(("seconds", "CPU seconds")):
            one, many = (median(times[clock] for times in seconds[app, count]) for count in (1, rounds))
            each = (many - one) / (rounds - 1)
            row |= {f"{name} a round": round(each, 2), f"{name} before the first": round(one - each, 2)}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", action="append", choices=ENGINES, dest="engines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    for kind in given.engines or ENGINES:
        measured = measure_process if kind == "process" else partial(measure, kind)
        for row in measured(given.rounds, given.repeats):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
