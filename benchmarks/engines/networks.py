"""The models as anybody would write them in PyTorch, with as many parameters as fedlag's of the same name."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.workloads import SEED, Workload

HIDDEN = {"mlp": (100,), "cnn": (512,), "resnet9": (256, 128), "resnet20w": (256, 128), "resnet18": ()}
RESNETS = {
    "resnet9": ((1, 2, 2, 1), (32, 64, 128, 256)),
    "resnet20w": ((3, 3, 3), (64, 128, 256)),
    "resnet18": ((2, 2, 2, 2), (64, 128, 256, 512)),
}


def build(workload: Workload) -> nn.Module:
    torch.manual_seed(SEED)
    name, (channels, height, width) = workload.model, workload.shape
    hidden = tuple(workload.hidden or HIDDEN[name])
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), *_dense(channels * height * width, hidden, workload.classes))
    if name == "cnn":
        pixels = ((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), *_dense(64 * pixels, hidden, workload.classes),
        )  # fmt: skip
    blocks, widths = RESNETS[name]
    return nn.Sequential(
        nn.Conv2d(channels, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(),
        *_residual(blocks, widths),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), *_dense(widths[-1], hidden, workload.classes),
    )  # fmt: skip


def test_loss(net: nn.Module, clients: list[tuple[Tensor, Tensor]]) -> float:
    """Mean cross-entropy on all of these images."""
    net.eval()
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(net(x), y, reduction="sum") for x, y in clients]
    return float(sum(losses)) / sum(len(y) for _, y in clients)


def _dense(inputs: int, hidden: tuple[int, ...], classes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return [*layers, nn.Linear((inputs, *hidden)[-1], classes)]


def _residual(blocks: tuple[int, ...], widths: tuple[int, ...]) -> list[nn.Module]:
    layers, before = [], widths[0]
    for group, (count, width) in enumerate(zip(blocks, widths, strict=True)):
        for block in range(count):
            layers.append(Block(before, width, stride=2 if group and not block else 1))
            before = width
    return layers


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.residual(x) + self.shortcut(x))
