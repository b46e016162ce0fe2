"""Law 11: nothing assumes that tensors are this processor's."""

import json
from itertools import islice

import pytest
import torch

from fedlag import experiment
from fedlag.checkpoint import encode as plain_encode
from fedlag.device import present
from fedlag.errors import InputError
from fedlag.execution import execute
from fedlag.federation.sequential import Sequential
from fedlag.flow import Batch
from fedlag.net import Model
from fedlag.round import STAGES, begin
from fedlag.run import evaluate, rounds
from laws.elsewhere import Elsewhere, here, pretending, there
from laws.federations import SEED, SIZES, SOME, TRAINING, every_method, noisy, ordinary, ragged, same


@every_method
def test_a_method_gives_the_same_bits_on_another_device(algorithm):
    """And never brings tensors of two devices together."""
    with pretending():
        task, server = begin(algorithm, Model(noisy().to("cuda")), TRAINING, len(SIZES), SEED)
        federation = Sequential(task, away(ragged()), SEED)
        done = list(islice(rounds(task, server, federation, SOME, SEED), 3))
        scores = {stage: evaluate(task, done[-1].server, federation, stage) for stage in STAGES}
    assert all(isinstance(value, Elsewhere) for value in done[-1].server.params.values())
    reference = ordinary(algorithm)
    assert same(here(done[-1].server.params), reference.run.server.params)
    assert same(scores, reference.scores)


def away(source):
    return lambda client, part: Batch(*map(there, source(client, part)))


def test_what_makes_no_sense_there_is_refused():
    """The device that is made up refuses as a GPU does, or the law above would say nothing."""
    x, y = torch.ones(2), torch.ones(2)
    with pretending():
        x = x.to("cuda")
        assert (x.device.type, y.device.type, (x + 1).device.type, x.cpu().device.type) == (
            "cuda",
            "cpu",
            "cuda",
            "cpu",
        )
        assert torch.zeros(2, device="cuda").device.type == torch.zeros_like(x).device.type == "cuda"
        assert (x + torch.tensor(1.0)).device.type == "cuda"
        for forbidden in (lambda: x + y, lambda: torch.stack([x, y]), lambda: y[x.long()]):
            with pytest.raises(RuntimeError, match="meet"):
                forbidden()
        with pytest.raises(TypeError, match="cpu"):
            x.numpy()


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_a_run_on_another_device_leaves_the_same_tables(tmp_path, monkeypatch, store):
    settings = (
        *("algorithm=fedlag", "rounds=4", "personal.warmup=1", "personal.k=1", f"store={store}"),
        *("data.name=digits", "data.clients=4", "data.limit=300", "model.hidden=[8]", "federation=sequential"),
    )
    plain = execute(experiment.load({}, *settings), tmp_path / "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for module in ("checkpoint", "store"):  # which know no kind of tensor but PyTorch's, as a GPU's are
        monkeypatch.setattr(f"fedlag.{module}.encode", encoded)
    with pretending():
        other = execute(experiment.load({}, *settings, "device=cuda"), tmp_path / "cuda")
    for name in ("rounds", "layers", "bytes"):
        assert (plain / f"{name}.parquet").read_bytes() == (other / f"{name}.parquet").read_bytes()
    assert hash_of(plain) != hash_of(other)


def encoded(value, tensors):
    return plain_encode(value.as_subclass(torch.Tensor) if isinstance(value, Elsewhere) else value, tensors)


def hash_of(folder):
    return json.loads((folder / "manifest.json").read_text())["hash"]


def test_an_absent_device_is_named():
    with pytest.raises(InputError, match=r"'cuda:7'.*finds"):
        present("cuda:7")
    with pytest.raises(InputError, match="'cuda:1'"):
        experiment.load({}, "device=tpu")
