"""Flower's simulation engine: Ray, with a worker of one core for each core.

Evaluation is Flower's own habit: the global model on every client's test images.
"""

from __future__ import annotations

import os
from functools import cache

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional

from benchmarks import workloads
from benchmarks.engines.networks import build, test_loss
from benchmarks.protocol import Clock, Outcome
from benchmarks.workloads import Workload


def run(workload: Workload, clock: Clock) -> Outcome:
    outcome = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        net = build(workload)

        def between(number: int, arrays: ArrayRecord) -> MetricRecord:
            clock.lap() if number else clock.ready()
            return MetricRecord()

        strategy = FedAvg(
            fraction_evaluate=1.0 if workload.evaluate else 0.0,
            min_train_nodes=workload.clients,
            min_available_nodes=workload.clients,
        )
        result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=clock.rounds, evaluate_fn=between)
        net.load_state_dict(result.arrays.to_torch_state_dict())
        steps = sum(metrics["steps"] for metrics in result.train_metrics_clientapp.values()) * workload.clients
        tests = [(torch.from_numpy(own.test_x), torch.from_numpy(own.test_y)) for own in data(workload)]
        outcome.append(Outcome(test_loss(net, tests), steps / clock.rounds))

    run_simulation(
        server_app=server,
        client_app=client_app(workload),
        num_supernodes=workload.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return outcome[0]


def client_app(workload: Workload) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net = received(message, workload)
        own = data(workload)[context.node_config["partition-id"]]
        optimizer = torch.optim.SGD(net.parameters(), lr=workload.lr)
        net.train()
        steps = 0
        for rows in torch.split(torch.randperm(workload.train), workload.batch):
            loss = functional.cross_entropy(net(torch.from_numpy(own.x)[rows]), torch.from_numpy(own.y)[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        metrics = MetricRecord({"num-examples": workload.train, "steps": steps})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        net = received(message, workload)
        own = data(workload)[context.node_config["partition-id"]]
        loss = test_loss(net, [(torch.from_numpy(own.test_x), torch.from_numpy(own.test_y))])
        metrics = MetricRecord({"num-examples": workload.test, "loss": loss})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return app


def received(message: Message, workload: Workload) -> torch.nn.Module:
    net = build(workload)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


@cache
def data(workload: Workload) -> list[workloads.Client]:
    """Once in each worker process."""
    return workloads.data(workload)
