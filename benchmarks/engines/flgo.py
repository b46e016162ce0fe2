"""flgo, with one thread as it chooses, on a task of our own images.

Its data sets have a `__getitem__` for one image only, and today's PyTorch then refuses to fetch batches; the method for
batches is added here. Evaluation is the global model on all test images.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import flgo
import flgo.algorithm.fedavg as fedavg
import numpy as np
import torch
from flgo.benchmark.partition import BasicPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from flgo.utils.fflow import gen_benchmark
from torch.utils.data import TensorDataset

from benchmarks import workloads
from benchmarks.engines.networks import build, test_loss
from benchmarks.protocol import Clock, Outcome
from benchmarks.workloads import Workload

FromDatasetPipe.TaskDataset.__getitems__ = lambda self, rows: [self[row] for row in rows]


def run(workload: Workload, clock: Clock) -> Outcome:
    data, counted = workloads.data(workload), Counted(clock)
    train, test = joined([(own.x, own.y) for own in data]), joined([(own.test_x, own.test_y) for own in data])
    sys.argv = sys.argv[:1]  # flgo reads settings from it
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        Path("config.py").write_text("from benchmarks.engines.flgo import get_model, test_data, train_data\n")
        module = importlib.import_module(__name__)
        module.train_data, module.test_data, module.get_model = train, test, lambda: build(workload)
        task = importlib.import_module(gen_benchmark("images", "config.py"))
        flgo.gen_task_by_(task, Given(workload.clients, workload.train), "task")
        runner = flgo.init(
            "task",
            SimpleNamespace(Server=counted.server(), Client=counted.client(), __name__="fedavg"),
            {
                "num_rounds": clock.rounds,
                "num_epochs": 1,
                "batch_size": workload.batch,
                "learning_rate": workload.lr,
                "learning_rate_decay": 1.0,
                "sample": "full",
                "proportion": 1.0,
                "train_holdout": 0.0,
                "eval_interval": 1 if workload.evaluate else 0,
                "no_log_console": True,
            },
        )
        runner.run()
        clock.lap()
        os.chdir("/")
    return Outcome(test_loss(runner.model, [test.tensors]), counted.steps / clock.rounds)


class Counted:
    """flgo's parties, which tell when a round begins and when a step is taken."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.begun = False
        self.steps = 0

    def server(self) -> type:
        class Server(fedavg.Server):
            def iterate(server):
                self.clock.lap() if self.begun else self.clock.ready()  # evaluation belongs to the round before it
                self.begun = True
                return super().iterate()

        return Server

    def client(self) -> type:
        class Client(fedavg.Client):
            def get_batch_data(client):
                self.steps += 1
                return super().get_batch_data()

        return Client


class Given(BasicPartitioner):
    """So many images in a row to every client."""

    def __init__(self, clients: int, each: int) -> None:
        self.clients = clients
        self.each = each
        self.num_clients = clients

    def __call__(self, data):
        return [list(range(client * self.each, (client + 1) * self.each)) for client in range(self.clients)]


def joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> TensorDataset:
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
