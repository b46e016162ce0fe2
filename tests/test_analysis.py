"""Laws of the analysis of update files."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from fedlag import analysis, divergence
from fedlag.errors import InputError


def model(seed):
    draw = torch.Generator().manual_seed(seed)
    return {
        "conv1.weight": torch.randn(4, 3, 2, 2, generator=draw),
        "conv1.bias": torch.randn(4, generator=draw),
        "norm.counter": torch.tensor(seed),
        "temperature": torch.randn((), generator=draw),
    }


@pytest.fixture
def write(tmp_path):
    """Writes one file for each of the given dicts of tensors."""

    def write(*clients):
        paths = [tmp_path / f"client{number}.safetensors" for number in range(len(clients))]
        for path, tensors in zip(paths, clients, strict=True):
            save_file(tensors, path)
        return paths

    return write


def flat(*tensors):
    return torch.stack([torch.cat([part.flatten() for part in parts]) for parts in zip(*tensors, strict=True)])


def test_weight_and_bias_of_a_module_are_one_layer(write):
    clients = [model(seed) for seed in range(5)]
    found = analysis.analyze_files(write(*clients), xi=-0.1)
    assert set(found) == {"conv1", "temperature"}
    joined = flat([c["conv1.weight"] for c in clients], [c["conv1.bias"] for c in clients])
    expected = divergence.conflict(divergence.gram([joined]), xi=-0.1)
    assert torch.allclose(found["conv1"].gram, expected.gram, atol=1e-4)
    assert found["conv1"].count == expected.count > 0


def test_each_tensor_can_be_a_layer_and_integers_are_none(write):
    found = analysis.analyze_files(write(model(0), model(1)), unit="tensor")
    assert set(found) == {"conv1.weight", "conv1.bias", "temperature"}


def test_with_weights_before_updates_are_differences(write):
    start, *ends = [model(seed) for seed in range(4)]
    *files, before = write(*ends, start)
    layer = analysis.read_updates(files, before)["conv1"]
    for name, block in zip(layer.tensors, layer, strict=True):
        assert torch.equal(block, torch.stack([end[name] - start[name] for end in ends]))


@pytest.mark.parametrize("most", [1, 2, 5, 12, 30, 1000])
def test_large_tensors_come_in_parts(write, monkeypatch, most):
    monkeypatch.setattr(analysis, "PIECE", most)
    clients = [model(seed) for seed in range(3)]
    layer = analysis.read_updates(write(*clients), unit="tensor")["conv1.weight"]
    blocks = list(layer)
    assert all(block[0].numel() <= most for block in blocks)
    joined = torch.cat([block.flatten(1) for block in blocks], dim=1)
    assert torch.equal(joined, torch.stack([client["conv1.weight"].flatten() for client in clients]))
    assert (len(blocks) == 1) == (most >= 48)


def test_a_layer_can_be_read_again(write):
    layer = analysis.read_updates(write(model(0), model(1)))["temperature"]
    assert torch.equal(next(iter(layer)), next(iter(layer)))


def test_differences_of_half_precision_weights_are_exact(write):
    start = {"w": torch.tensor([1.0, 256.0]).bfloat16()}
    ends = [{"w": torch.tensor([1.0078125, 258.0]).bfloat16()}, {"w": torch.tensor([0.0, 1.0 / 256]).bfloat16()}]
    *files, before = write(*ends, start)
    (block,) = analysis.read_updates(files, before)["w"]
    assert block.tolist() == [[0.0078125, 2.0], [-1.0, 1 / 256 - 256]]


def test_double_precision_stays_double(write):
    (block,) = analysis.read_updates(write(*[{"w": torch.tensor([1e-300], dtype=torch.float64)}] * 2))["w"]
    assert block.tolist() == [[1e-300]] * 2


def test_reading_one_layer_reads_no_other(write):
    sound, poisoned = torch.ones(3), torch.tensor([0.0, float("nan")])
    layers = analysis.read_updates(write(*[{"sound": sound, "poisoned": poisoned}] * 2))
    assert next(iter(layers["sound"])).shape == (2, 3)
    with pytest.raises(InputError, match="poisoned"):
        next(iter(layers["poisoned"]))


def test_rows_are_plain_values_in_the_order_fedlag_would_choose(write):
    x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    first = {"calm": x, "calm too": x, "mild": x, "opposite": x}
    second = {"calm": x, "calm too": x, "mild": y - 0.1 * x, "opposite": -x}
    files = write(*[{name: value.clone() for name, value in client.items()} for client in (first, second)])
    rows = analysis.as_rows(analysis.analyze_files(files))
    assert [row["layer"] for row in rows] == ["opposite", "mild", "calm", "calm too"]
    assert json.loads(json.dumps(rows)) == rows
    assert rows[0] == {
        "layer": "opposite",
        "count": 1,
        "pairs": 1,
        "mean_cosine": -1.0,
        "norm": 1.0,
        "improvement": 1.0,
    }


@pytest.mark.parametrize("given", [0, 1])
def test_fewer_than_two_clients_are_refused(write, given):
    with pytest.raises(InputError, match=f"{given} file"):
        analysis.read_updates(write(*[model(0)] * given))


def test_the_same_file_twice_is_refused(write):
    first, second = write(model(0), model(1))
    with pytest.raises(InputError, match=r"client1\.safetensors is given twice"):
        analysis.read_updates([first, second, second])
    with pytest.raises(InputError, match=r"client0\.safetensors is given twice"):
        analysis.read_updates([first, second], before=first.parent / ".." / first.parent.name / first.name)


@pytest.mark.parametrize("unit", ["modules", "layer"])
def test_an_unknown_unit_is_refused(write, unit):
    with pytest.raises(InputError, match="Known: module, tensor"):
        analysis.read_updates(write(model(0), model(1)), unit=unit)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_tensor_missing_from_one_file_is_named_with_the_file(write, odd):
    clients = [model(seed) for seed in range(3)]
    del clients[odd]["conv1.bias"]
    *files, before = write(*clients)
    with pytest.raises(InputError, match=rf"client{odd}\.safetensors has no .*'conv1.bias'"):
        analysis.read_updates(files, before)


def test_an_integer_tensor_is_no_stand_in_for_a_floating_one(write):
    files = write(model(0), model(1) | {"temperature": torch.tensor(1)})
    with pytest.raises(InputError, match=r"client1\.safetensors has no floating-point tensor 'temperature'"):
        analysis.read_updates(files)


def test_another_shape_is_named_with_the_tensor_and_the_file(write):
    files = write(model(0), model(1), model(2) | {"conv1.bias": torch.ones(5)})
    with pytest.raises(InputError, match=r"'conv1\.bias' is of shape \[5\] in .*client2\.safetensors, but \[4\]"):
        analysis.read_updates(files)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_values_that_are_not_finite_are_named_with_the_tensor_and_the_file(write, poison, odd):
    clients = [model(seed) for seed in range(3)]
    clients[odd]["conv1.weight"][1, 2, 0, 1] = poison
    *files, before = write(*clients)
    with pytest.raises(InputError, match=rf"client{odd}\.safetensors holds NaN or infinite values in 'conv1\.weight'"):
        analysis.analyze_files(files, before)


def test_files_without_floating_point_tensors_are_refused(write):
    with pytest.raises(InputError, match=r"client0\.safetensors holds no floating-point tensors"):
        analysis.read_updates(write({"n": torch.tensor(1)}, {"n": torch.tensor(2)}))


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "missing", "folder"])
def test_what_is_no_whole_safetensors_file_is_named(write, damage):
    good, bad = write(model(0), model(1))
    whole = bad.read_bytes()
    bad.unlink()
    if damage == "folder":
        bad.mkdir()
    elif damage != "missing":
        bad.write_bytes({"truncated": whole[:-3], "empty": b"", "text": b"weights, honestly" * 9}[damage])
    with pytest.raises(InputError, match=r"client1\.safetensors cannot be read as safetensors"):
        analysis.read_updates([good, bad])


def test_a_file_that_vanishes_while_reading_is_named(write):
    files = write(model(0), model(1))
    layers = analysis.read_updates(files)
    os.remove(files[1])
    with pytest.raises(InputError, match=r"client1\.safetensors cannot be read"):
        divergence.analyze(layers)


READER = """
import re, sys
import torch
from fedlag.analysis import analyze_files

def memory(field):  # of this process alone; getrusage would start from the peak of its parent
    with open("/proc/self/status") as status:
        return int(re.search(field + r":\\s+(\\d+) kB", status.read())[1]) * 1024

torch.ones(9, 9) @ torch.ones(9, 9)
idle = memory("VmRSS")
analyze_files(sys.argv[2:], before=sys.argv[1])
print(memory("VmHWM") - idle)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_holds_one_tensor_of_all_clients_whatever_the_size_of_the_models(write):
    tensors, size = 20, 500_000
    files = write(*[{f"net.{number}": torch.full((size,), 1.0 + c) for number in range(tensors)} for c in range(11)])
    printed = subprocess.run([sys.executable, "-c", READER, *files], check=True, capture_output=True, text=True).stdout
    one_stack = 10 * size * 4
    assert int(printed) < 5 * one_stack < tensors * one_stack / 2
