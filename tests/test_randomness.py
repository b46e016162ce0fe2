"""PyTorch's own generators."""

import torch

from fedlag import randomness
from fedlag.randomness import seeded, states, undisturbed


def test_every_device_s_generator_is_seeded_and_put_back(monkeypatch):
    gpu = torch.Generator().manual_seed(1)
    monkeypatch.setattr(randomness, "generators", lambda: (torch.default_generator, gpu))

    def drawn():
        return torch.rand(2), torch.rand(2, generator=gpu)

    before = states()
    with seeded(7):
        first = drawn()
    assert all(map(torch.equal, before, states()))
    drawn()
    with seeded(7):
        assert all(map(torch.equal, first, drawn()))
    before = states()
    with undisturbed():
        drawn()
    assert all(map(torch.equal, before, states()))


def test_without_a_gpu_in_use_there_is_the_processor_s():
    assert randomness.generators() == (torch.default_generator,)
