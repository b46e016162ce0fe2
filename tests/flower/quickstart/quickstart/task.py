"""A small network, and data that sites label in two different ways."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 4 * 4, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(x))), 2)
        return self.out(functional.relu(self.hidden(x.flatten(1))))


def load_data(partition):
    """Each class is a pattern; sites of odd number call every class by its neighbour's name."""
    generator = torch.Generator().manual_seed(partition)
    patterns = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1000))
    labels = torch.randint(4, (96,), generator=generator)
    images = patterns[labels] + 0.3 * torch.randn(96, 1, 8, 8, generator=generator)
    named = (labels + partition % 2) % 4
    train = DataLoader(TensorDataset(images[:64], named[:64]), batch_size=16, shuffle=True, generator=generator)
    return train, DataLoader(TensorDataset(images[64:], named[64:]), batch_size=32)


def train(net, loader, epochs, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


@torch.no_grad()
def test(net, loader):
    net.eval()
    correct = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in loader)
    return correct / len(loader.dataset)
