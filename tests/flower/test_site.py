"""A node's own side: what it is configured to be, data of its own, and how light it starts."""

import subprocess
import sys

import numpy as np
import pytest

from fedlag.errors import InputError
from fedlag.flower.server_app import Settings
from fedlag.results import read, summarise
from flower.grids import Local
from flower.runs import LAG, app, on_flower

pytestmark = pytest.mark.usefixtures("no_waiting_for_disks")

BRIEF = Settings(timeout=0.5)


def grid_with(folder, node_config):
    grid = Local(folder, folder / "store", 4)
    grid.node_config = node_config
    return grid


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"partition-id": "two"}, "partition-id is 'two'"),
        ({"partition-id": 7}, "partition-id = 7 is not allowed; with data.clients = 4 it is 0 to 3"),
        ({"data": "nowhere.npz"}, "how many classes"),
        ({"data": "nowhere.npz", "classes": 10}, "There is no file or folder nowhere.npz"),
    ],
)
def test_a_node_that_is_configured_wrongly_is_told_so_by_the_server(tmp_path, config, sentence):
    one = app(tmp_path)
    grid = grid_with(tmp_path, dict.fromkeys(range(4), config))
    with pytest.raises(InputError) as refusal:
        on_flower(one, tmp_path, settings=BRIEF, grid=grid)
    assert sentence in str(refusal.value)


def test_a_node_of_another_experiment_is_sent_nothing(tmp_path):
    one = app(tmp_path)
    (tmp_path / "experiment.toml").write_text(app(tmp_path / "other", seed=7).toml())
    with pytest.raises(InputError, match=r"its experiment is .*, the server's"):
        on_flower(one, tmp_path, settings=BRIEF)


def own_data(folder, client, classes, shape=(1, 8, 8)):
    generator = np.random.default_rng(client)
    y = np.resize(np.array(classes), 60)
    x = generator.normal(size=(60, *shape)).astype(np.float32)
    x.reshape(60, -1)[np.arange(60), y] += 5.0
    np.savez(folder / f"site-{client}.npz", x=x, y=y)
    return {"data": str(folder / f"site-{client}.npz"), "classes": 5}


def test_sites_with_data_of_their_own_learn_together(tmp_path):
    """No site has all the classes, and the server has no data at all."""
    one = app(tmp_path, algorithm="fedper", data={"clients": 4, "name": "nowhere.npz"}, rounds=10)
    grid = grid_with(tmp_path, {client: own_data(tmp_path, client, [client, client + 1]) for client in range(4)})
    _, folder = on_flower(one, tmp_path, grid=grid)
    assert not read(folder).dropped.num_rows
    assert summarise(read(folder)).last.mean > 0.8


def test_sites_whose_examples_differ_are_refused(tmp_path):
    one = app(tmp_path, data={"clients": 4, "name": "nowhere.npz"})
    shapes = {0: (1, 8, 8), 1: (1, 8, 8), 2: (1, 4, 4), 3: (1, 8, 8)}
    grid = grid_with(tmp_path, {client: own_data(tmp_path, client, [0, 1], shape) for client, shape in shapes.items()})
    with pytest.raises(InputError, match=r"client 2: \(1, 4, 4\), 5 classes"):
        on_flower(one, tmp_path, grid=grid)


HEAVY = ("torch.optim", "torch._dynamo", "torch._inductor", "pyarrow", "ray", "scipy", "matplotlib", "sympy")

ROUND = """
import sys
from pathlib import Path
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
import flwr.supernode.cli.flwr_clientapp

TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
before = set(sys.modules)

from fedlag.flower.client_app import client_app
from fedlag.flower import wire

home = Path(sys.argv[1])
app = client_app(home / "app.py")
context = Context(1, 1, {"partition-id": 0, "fedlag-store": str(home / "store")}, RecordDict(), {})

def ask(kind, content):
    message = Message(content, 1, kind)
    message.metadata.__dict__["_message_id"] = "1"
    return app(message, context).content

assert wire.read_hello(ask("query", RecordDict())).client == 0
from fedlag.flower.site import site_of
from fedlag.birth import born
from fedlag.round import address, broadcast
site = site_of(home, context)
task, server = born(site.experiment, site.hello.shape, site.hello.classes, 4)
call = wire.Call("0" * 16, 0, broadcast(task, server), address(task, server, 0), ())
for kind in ("train", "evaluate"):
    answer = wire.read_answer(ask(kind, wire.write(call)))
    assert not answer.problem, answer.problem
print(*sorted(set(sys.modules) - before))
"""


def test_a_fresh_client_app_loads_nothing_heavy(tmp_path):
    """Flower starts a process for every message; besides Flower and torch itself there is nothing to wait for."""
    app(tmp_path, algorithm="scaffold", personal=LAG)
    done = subprocess.run([sys.executable, "-c", ROUND, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    bare = [sys.executable, "-c", "import sys, torch; print(*sys.modules)"]
    alone = subprocess.run(bare, capture_output=True, text=True, check=True).stdout.split()
    extra = set(loaded) - set(alone)
    assert not [name for name in extra if name.startswith(HEAVY)]
