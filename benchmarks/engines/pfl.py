"""Apple's pfl: its simulated backend, with one process.

Evaluation is pfl's own habit: training images before and after local training, and all test images as of other users.
"""

from __future__ import annotations

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

from benchmarks import workloads
from benchmarks.engines.networks import build, test_loss
from benchmarks.protocol import Clock, Outcome
from benchmarks.workloads import Workload


def run(workload: Workload, clock: Clock) -> Outcome:
    net, data = Net(workload), workloads.data(workload)
    train = [(torch.from_numpy(own.x), torch.from_numpy(own.y)) for own in data]
    tests = [(torch.from_numpy(own.test_x), torch.from_numpy(own.test_y)) for own in data]
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    backend = SimulatedBackend(users(train), users(tests))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=clock.rounds,
            evaluation_frequency=1 if workload.evaluate else clock.rounds,  # the first round is always evaluated
            train_cohort_size=workload.clients,
            val_cohort_size=workload.clients if workload.evaluate else 0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=workload.lr, local_batch_size=workload.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Laps(clock)],
    )
    return Outcome(test_loss(net, tests), net.steps / clock.rounds)


class Net(torch.nn.Module):
    """The network with what pfl asks of one."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.layers = build(workload)
        self.steps = 0

    def forward(self, x):
        return self.layers(x)

    def loss(self, x, y):
        self.train()
        self.steps += 1
        return functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        self.eval()
        scores = self(x)
        return {
            "loss": Weighted(functional.cross_entropy(scores, y, reduction="sum").item(), len(y)),
            "accuracy": Weighted((scores.argmax(1) == y).sum().item(), len(y)),
        }


class Laps(TrainingProcessCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *, model):
        self.clock.ready()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.lap()
        return False, Metrics()


def users(examples: list[tuple[torch.Tensor, torch.Tensor]]) -> FederatedDataset:
    sets = [Dataset(raw_data=own) for own in examples]
    return FederatedDataset(sets.__getitem__, get_user_sampler("minimize_reuse", range(len(sets))))
