"""Laws of saving a run and taking it up again."""

import errno
import json
import math
import os
import re
import shutil
import struct
import tempfile
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import SEED, SOME, conv, ragged, start
from torch import Tensor

from fedlag import checkpoint
from fedlag.algorithms.fedavg import FedAvg
from fedlag.errors import InputError
from fedlag.federation.sequential import Sequential
from fedlag.flow import Client, Server
from fedlag.lag import LAG
from fedlag.optim import Adam
from fedlag.personal import Named, RandomLayers, WarmStart
from fedlag.run import evaluate, rounds


class Pair(NamedTuple):
    left: Any
    right: Any


class Single(NamedTuple):
    value: Any = None


def server(memory=None, round=12):
    return Server(
        round=round, params={"w": torch.ones(2)}, optimizer={}, rule=(), memory=memory, since={"w": 3}, met={0: 1}
    )


LIKE = server(memory=(Pair(0, 0), Single()))


def same(a, b):
    """Equal in type, order and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        bits = [x.detach().clone().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def everything(folder):
    """What is below a folder: its files, and the folders that hold none."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() or not any(path.iterdir())
    )


# Any state survives

SHAPES = st.lists(st.integers(0, 3), max_size=3)
DTYPES = st.sampled_from(
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
)


@st.composite
def tensors(draw):
    """Any shape and memory layout; several may share their memory."""
    dtype, shape = draw(DTYPES), draw(SHAPES)
    values = torch.tensor(draw(st.lists(st.integers(0, 255), min_size=1, max_size=8)), dtype=torch.uint8)
    count = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    raw = values.repeat(count // len(values) + 1)[:count] if dtype != torch.bool else values.repeat(count)[:count] % 2
    whole = raw.clone().view(dtype).reshape(shape)
    return draw(
        st.sampled_from(
            [
                whole,
                whole.T if whole.ndim == 2 else whole,
                whole[..., :1] if whole.ndim else whole,
                whole[None].expand(3, *shape),
            ]
        )
    )


numbers = st.integers() | st.floats()
texts = st.text(st.characters(exclude_categories=()))
plain = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    plain | tensors() | st.frozensets(st.integers() | texts | st.tuples(texts, st.booleans())),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | texts, inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Single, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(values)
def test_any_nesting_survives_with_types_order_and_bits(value):
    before, clients = server(memory=value), {7: Client(3, {"w": torch.zeros(2)}, value), 2: Client()}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder), "abc", before, clients)
        assert same(checkpoint.load(Path(folder), "abc", LIKE), (before, clients))


def test_odd_floats_survive():
    odd = [
        0.0,
        -0.0,
        5e-324,
        1 / 3,
        1e308 * 10,
        -math.inf,
        *struct.unpack("2d", bytes.fromhex("010000000000f87f" + "230100000000f8ff")),
    ]
    encoded = json.loads(json.dumps(checkpoint.encode(odd, []), allow_nan=False))
    assert same(checkpoint.decode(encoded, [], {}), odd)


def test_tensors_that_share_memory_come_back_apart(tmp_path):
    base = torch.arange(6.0)
    memory = {
        "whole": base,
        "again": base,
        "part": base[2:4],
        "column": base.reshape(2, 3)[:, 1],
        "spread": base[:1].expand(4),
    }
    checkpoint.save(tmp_path, "abc", server(memory), {})
    (after, _) = checkpoint.load(tmp_path, "abc", LIKE)
    assert same(after.memory, memory)
    after.memory["whole"].zero_()
    assert same(after.memory["again"], base)


def test_what_was_loaded_does_not_hang_on_the_file(tmp_path):
    before = server({"m": torch.arange(5000.0)})
    checkpoint.save(tmp_path, "abc", before, {})
    after, _ = checkpoint.load(tmp_path, "abc", LIKE)
    path = tmp_path / "checkpoint" / "round-000012" / "tensors.safetensors"
    with path.open("rb+") as file:
        file.write(bytes(path.stat().st_size))
    assert same(after, before)


class Custom:
    pass


@pytest.mark.parametrize(
    ("value", "name"),
    [(Custom(), "Custom"), ({1, 2}, "set"), (torch.nn.Parameter(torch.ones(1)), "Parameter"), (1j, "complex")],
)
def test_what_is_unknown_is_refused_by_its_type_before_anything_is_written(tmp_path, value, name):
    with pytest.raises(TypeError, match=f"{name} cannot be saved"):
        checkpoint.save(tmp_path, "abc", server({"deep": [(value,)]}), {})
    assert everything(tmp_path) == []


def test_a_named_tuple_the_algorithm_does_not_use_is_not_made(tmp_path):
    checkpoint.save(tmp_path, "abc", server(Pair(1, 2)), {})
    with pytest.raises(InputError, match=r"written by another version .*Pair of left, right"):
        checkpoint.load(tmp_path, "abc", server(Single()))


def test_a_named_tuple_with_other_fields_is_not_made(tmp_path):
    class Other(NamedTuple):
        left: int
        middle: int

    Other.__qualname__ = "Pair"
    checkpoint.save(tmp_path, "abc", server(Other(1, 2)), {})
    with pytest.raises(InputError, match="left, middle"):
        checkpoint.load(tmp_path, "abc", LIKE)


# Runs go on

METHODS = {
    "union with momentum on the server": FedAvg(
        server=Adam(lr=0.05, bias_correction=False), personal=Named("head.*") | LAG(k=1, warmup=2, hold=2)
    ),
    "frozen": FedAvg(personal=LAG(k=2, warmup=3, mode="frozen", unit="tensor", norm="local")),
    "three rules": FedAvg(personal=RandomLayers(k=1, warmup=1) | LAG(k=1, warmup=1) | WarmStart(warmup=7)),
    "nothing personal": FedAvg(server=Adam()),
}


def advance(task, begun, federation, number):
    """Rounds from where a server stands; gives the last server, and everything one could see of the way."""
    seen = []
    for done in islice(rounds(task, begun, federation, SOME, SEED, lambda round: ("test",)), number):
        seen.append((done.message, done.letters, done.trained, done.dropped, done.step, done.sent))
        begun = done.server
    return begun, seen


@pytest.mark.parametrize("pause", [1, 4])
@pytest.mark.parametrize("algorithm", [pytest.param(value, id=name) for name, value in METHODS.items()])
def test_save_restore_continue_equals_continuing(tmp_path, algorithm, pause):
    task, begun, federation = start(algorithm, net=conv)
    half, _ = advance(task, begun, federation, pause)
    checkpoint.save(tmp_path, "abc", half, federation.clients())
    whole, seen = advance(task, half, federation, 8 - pause)

    task, begun, again = start(algorithm, net=conv)
    restored, clients = checkpoint.load(tmp_path, "abc", begun)
    assert same(restored, half)
    again.restore(clients)
    continued, seen_again = advance(task, restored, again, 8 - pause)
    assert same(continued, whole)
    assert same(seen_again, seen)
    assert same(again.clients(), federation.clients())
    assert same(evaluate(task, continued, again), evaluate(task, whole, federation))


def test_the_union_changes_its_mind_while_the_law_above_looks_on():
    """Or it would say less than it seems to."""
    task, begun, federation = start(METHODS["union with momentum on the server"], net=conv)
    _, seen = advance(task, begun, federation, 8)
    assert len({step.personal for *_, step, _ in seen}) > 1
    assert any(letter.birth for _, letters, *_ in seen for letter in letters.values())


def test_another_federation_may_go_on(tmp_path):
    """Clients that were never met need no place in a checkpoint."""
    task, begun, federation = start(METHODS["frozen"], net=conv)
    half, _ = advance(task, begun, federation, 1)
    assert 0 < len(federation.clients()) < task.clients
    checkpoint.save(tmp_path, "abc", half, federation.clients())
    _, clients = checkpoint.load(tmp_path, "abc", begun)
    assert clients.keys() == federation.clients().keys()
    other = Sequential(task, ragged(), SEED)
    other.restore(clients)
    assert same(evaluate(task, half, other), evaluate(task, half, federation))


# Folders and damage


def test_there_is_none_before_the_first(tmp_path):
    assert checkpoint.load(tmp_path, "abc", LIKE) is None
    (tmp_path / "checkpoint").mkdir()
    assert checkpoint.load(tmp_path, "abc", LIKE) is None


def test_only_the_newest_is_kept(tmp_path):
    for round in (2, 9, 10, 1_000_000):
        checkpoint.save(tmp_path, "abc", server(round=round), {})
        assert everything(tmp_path) == [
            f"checkpoint/round-{round:06d}/{name}" for name in ("state.json", "tensors.safetensors")
        ]
        assert checkpoint.load(tmp_path, "abc", LIKE)[0].round == round


def test_of_two_the_newer_counts(tmp_path):
    """A process may die after one is written and before the other is removed."""
    checkpoint.save(tmp_path / "old", "abc", server(round=99_999), {})
    checkpoint.save(tmp_path / "new", "abc", server(round=1_000_000), {})
    for which in ("old", "new"):
        shutil.copytree(tmp_path / which / "checkpoint", tmp_path / "checkpoint", dirs_exist_ok=True)
    assert checkpoint.load(tmp_path, "abc", LIKE)[0].round == 1_000_000


def test_a_round_may_be_saved_again(tmp_path):
    for memory in (1, 2):
        checkpoint.save(tmp_path, "abc", server(memory), {})
        assert checkpoint.load(tmp_path, "abc", LIKE)[0].memory == memory


def test_the_checkpoint_of_another_experiment_is_refused_with_both_names(tmp_path):
    checkpoint.save(tmp_path, "abc123", server(), {})
    with pytest.raises(InputError, match=r"is of experiment abc123, but this one is def456"):
        checkpoint.load(tmp_path, "def456", LIKE)


@pytest.fixture
def saved(tmp_path):
    checkpoint.save(tmp_path, "abc", server({"m": torch.arange(5.0), "f": 0.5}), {1: Client(2, {"w": torch.ones(2)})})
    return tmp_path / "checkpoint" / "round-000012"


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "longer", "a folder"])
def test_a_damaged_file_is_named(tmp_path, saved, name, damage):
    path = saved / name
    whole = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"empty": b"", "truncated": whole[:-1], "longer": whole + b"0"}[damage])
    with pytest.raises(InputError, match=re.escape(f"{path} cannot be used")):
        checkpoint.load(tmp_path, "abc", LIKE)


def test_no_flipped_bit_goes_unnoticed(tmp_path, saved):
    """Save one between characters that mean the same, such as a blank that becomes a line's end."""
    before = checkpoint.load(tmp_path, "abc", LIKE)
    tried = unnoticed = 0
    for name in ("state.json", "tensors.safetensors"):
        whole = (saved / name).read_bytes()
        for place in range(0, len(whole), 3):
            flipped = whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
            (saved / name).write_bytes(flipped)
            tried += 1
            with suppress(InputError):
                assert same(checkpoint.load(tmp_path, "abc", LIKE), before)
                unnoticed += 1
        (saved / name).write_bytes(whole)
    assert unnoticed < 0.05 * tried


@pytest.mark.parametrize(
    "content", ["[]", "3", '{"sha256": "", "content": []}', '{"content": {"a": NaN}, "sha256": ""}']
)
def test_other_json_is_no_checkpoint(tmp_path, saved, content):
    (saved / "state.json").write_text(content)
    with pytest.raises(InputError, match=r"state\.json cannot be used"):
        checkpoint.load(tmp_path, "abc", LIKE)


class Killed(BaseException):
    pass


def dying_after(monkeypatch, count):
    """Like a process killed at a step that touches the disk: nothing happens from then on, no cleaning up either."""
    left = iter(range(count))

    def mortal(function):
        def step(*args, **kwargs):
            if next(left, None) is None:
                raise Killed
            return function(*args, **kwargs)

        return step

    for place, name in (
        (os, "replace"),
        (os, "fsync"),
        (shutil, "rmtree"),
        (Path, "mkdir"),
        (Path, "unlink"),
        (Path, "open"),
    ):
        monkeypatch.setattr(place, name, mortal(getattr(place, name)))


def test_whenever_the_process_dies_there_is_a_whole_checkpoint(tmp_path):
    deaths = 0
    for count in range(100):
        folder = tmp_path / str(count)
        checkpoint.save(folder, "abc", server("old", round=1), {})
        with pytest.MonkeyPatch.context() as monkeypatch:
            dying_after(monkeypatch, count)
            with suppress(Killed):
                checkpoint.save(folder, "abc", server("new", round=2), {})
                break
        deaths += 1
        assert checkpoint.load(folder, "abc", LIKE)[0].memory in ("old", "new")
        for again in (2, 3):  # what is left over is in nobody's way, and gone
            checkpoint.save(folder, "abc", server("newer", round=again), {})
            assert checkpoint.load(folder, "abc", LIKE)[0].memory == "newer"
            assert {path.name for path in (folder / "checkpoint").iterdir()} == {f"round-{again:06d}"}
            assert len(everything(folder)) == 2
    assert deaths > 8


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_full_disk_is_one_sentence_and_leaves_the_last_checkpoint(tmp_path, monkeypatch, step):
    checkpoint.save(tmp_path, "abc", server("old", round=1), {})
    before = everything(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(InputError, match=r"round-000002.* cannot be written \(No space left on device\)"):
        checkpoint.save(tmp_path, "abc", server("new", round=2), {})
    assert everything(tmp_path) == before
    assert checkpoint.load(tmp_path, "abc", LIKE)[0].memory == "old"


def test_a_file_that_outgrows_its_limit_is_a_full_disk_too(tmp_path):
    """This refusal comes from the system itself, by way of safetensors."""
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        with pytest.raises(InputError, match=r"tensors\.safetensors cannot be written .*File too large"):
            checkpoint.save(tmp_path, "abc", server(torch.zeros(10_000)), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert everything(tmp_path) == ["checkpoint"]


def test_a_folder_that_is_none_is_named(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(InputError, match=r"run.checkpoint.round-000012 cannot be written"):
        checkpoint.save(tmp_path / "run", "abc", server(), {})
