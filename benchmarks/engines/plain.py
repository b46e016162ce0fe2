"""A plain PyTorch loop, in the manner of PFLlib as far as time and memory depend on it.

Every client is an object with a deep copy of the model and an optimiser of its own for the whole run; parameters are
copied to and from it one by one; a DataLoader is made for every pass over the data. Evaluation, as there, is of every
client before it trains, in training batches: accuracy and area under the curve on its test images, loss on its
training images. Data stay in memory, which PFLlib reads from disk in every round, and small last batches count.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks import workloads
from benchmarks.engines.networks import build, test_loss
from benchmarks.protocol import Clock, Outcome
from benchmarks.workloads import Workload

Images = list[tuple[Tensor, Tensor]]


class Client:
    def __init__(self, model: nn.Module, data: workloads.Client, workload: Workload, score_training: bool) -> None:
        self.model = copy.deepcopy(model)
        self.train_images: Images = list(zip(torch.from_numpy(data.x), torch.from_numpy(data.y), strict=True))
        self.test_images: Images = list(zip(torch.from_numpy(data.test_x), torch.from_numpy(data.test_y), strict=True))
        self.batch = workload.batch
        self.score_training = score_training
        self.loss = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=workload.lr)
        self.steps = 0

    def receive(self, model: nn.Module) -> None:
        for own, theirs in zip(values(self.model), values(model), strict=True):
            own.data = theirs.data.clone()

    def train(self) -> None:
        self.model.train()
        for x, y in DataLoader(self.train_images, self.batch, shuffle=True):  # type: ignore[arg-type]
            loss = self.loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.steps += 1

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float, float]:
        """Accuracy and area under the curve on test images, loss on training images."""
        self.model.eval()
        scores, labels, loss = [], [], 0.0
        for x, y in DataLoader(self.test_images, self.batch):  # type: ignore[arg-type]
            scores.append(torch.softmax(self.model(x), dim=1).numpy())
            labels.append(y.numpy())
        if self.score_training:
            for x, y in DataLoader(self.train_images, self.batch):  # type: ignore[arg-type]
                loss += self.loss(self.model(x), y).item() * len(y)
        score, label = np.concatenate(scores), np.concatenate(labels)
        return float((score.argmax(1) == label).mean()), area(score, label), loss


def run(workload: Workload, clock: Clock, score_training: bool = True) -> Outcome:
    """score_training: whether evaluation also passes over the training images, as PFLlib's does."""
    model, data = build(workload), workloads.data(workload)
    clients = [Client(model, own, workload, score_training) for own in data]
    clock.ready()
    for _ in range(clock.rounds):
        for client in clients:
            client.receive(model)
        if workload.evaluate:
            for client in clients:
                client.evaluate()
        for client in clients:
            client.train()
        aggregate(model, clients)
        clock.lap()
    tests = [(torch.from_numpy(own.test_x), torch.from_numpy(own.test_y)) for own in data]
    return Outcome(test_loss(model, tests), sum(client.steps for client in clients) / clock.rounds)


def aggregate(model: nn.Module, clients: list[Client]) -> None:
    """The mean of the clients' models, weighted by their examples."""
    examples = sum(len(client.train_images) for client in clients)
    for value in values(model):
        value.data.zero_()
    for client in clients:
        for mean, value in zip(values(model), values(client.model), strict=True):
            mean.data += value.data * (len(client.train_images) / examples)


def values(model: nn.Module) -> list[Tensor]:
    """What is averaged: parameters and BatchNorm statistics."""
    return [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve, every score of every class taken for one decision."""
    truth = (labels[:, None] == np.arange(scores.shape[1])).ravel()
    ranks = np.empty(truth.size)
    ranks[np.argsort(scores.ravel(), kind="stable")] = np.arange(1, truth.size + 1)
    positive = truth.sum()
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * (truth.size - positive)))
