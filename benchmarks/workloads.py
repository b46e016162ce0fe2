"""What is computed, the same for every engine. Needs numpy alone, because every peer's environment imports it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SEED = 2026
GREY, COLOUR = (1, 28, 28), (3, 32, 32)
PATTERN = 0.5  # how strongly a class shows through the noise


@dataclass(frozen=True)
class Workload:
    """FedAvg with plain SGD: in every round every client trains one epoch; with `evaluate` all are then scored."""

    model: str
    shape: tuple[int, int, int]
    batch: int
    clients: int = 20
    train: int = 400  # images of each client
    test: int = 100
    rounds: int = 2  # timed ones; a first round goes before them
    evaluate: bool = False
    hidden: tuple[int, ...] | None = None  # other widths of the fully connected layers than the model's own
    classes: int = 10
    lr: float = 0.005

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Workload:
        """From JSON, which knows no tuples."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})

    @property
    def images(self) -> int:
        """Trained on in a round."""
        return self.clients * self.train

    @property
    def steps(self) -> int:
        """Gradient steps in a round, all clients together; an epoch's last batch may be smaller."""
        return self.clients * -(-self.train // self.batch)


WORKLOADS = {
    "cnn": Workload("cnn", GREY, batch=10),
    "cnn-b32": Workload("cnn", GREY, batch=32),
    "cnn-eval": Workload("cnn", GREY, batch=10, evaluate=True),
    "cnn-b32-eval": Workload("cnn", GREY, batch=32, evaluate=True),
    "mlp": Workload("mlp", GREY, batch=10, rounds=10),
    "mlp-b32": Workload("mlp", GREY, batch=32, rounds=10),
    "mlp-eval": Workload("mlp", GREY, batch=10, rounds=10, evaluate=True),
    "mlp-b32-eval": Workload("mlp", GREY, batch=32, rounds=10, evaluate=True),
    # Smaller than the others, which would take minutes a round: speed is per image.
    "resnet9": Workload("resnet9", COLOUR, batch=10, clients=4, train=100, test=20),
    "resnet20w": Workload("resnet20w", COLOUR, batch=10, clients=4, train=40, test=20),
    # Memory alone: ten clients' models of 11 million parameters.
    "resnet18": Workload("resnet18", COLOUR, batch=10, clients=10, train=10, test=10, rounds=1),
}


def quick(workload: Workload) -> Workload:
    """The same on a tenth of the images or less, for trying the command out."""
    return replace(workload, clients=4, train=min(workload.train, 40), test=10, rounds=min(workload.rounds, 2))


class Client(NamedTuple):
    x: NDArray[np.float32]  # (train, channels, height, width)
    y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]


def data(workload: Workload) -> list[Client]:
    """Every class is a pattern under noise, and every client's mix of classes a Dirichlet(0.5) draw."""
    generator = np.random.default_rng(SEED)
    patterns = generator.standard_normal((workload.classes, *workload.shape), dtype=np.float32)
    clients = []
    for _ in range(workload.clients):
        rows = workload.train + workload.test
        labels = generator.choice(workload.classes, rows, p=generator.dirichlet([0.5] * workload.classes))
        images = generator.standard_normal((rows, *workload.shape), dtype=np.float32)
        images += PATTERN * patterns[labels]
        clients.append(Client(images[: workload.train], labels[: workload.train],
                              images[workload.train :], labels[workload.train :]))  # fmt: skip
    return clients
