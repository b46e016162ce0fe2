"""Clients in forks of this process."""

import multiprocessing
import os
import signal
import sys
import time
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from laws.federations import ALL, SIZES, conv, noisy, run, same, start

from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.errors import InputError
from fedlag.federation import forks, processes
from fedlag.federation.forks import forked
from fedlag.federation.processes import Processes
from fedlag.run import rounds
from fedlag.store import Store

pytestmark = pytest.mark.skipif(not processes.FORKS, reason="forks need Linux")
TWO = partial(Processes, workers=2)


@pytest.fixture
def forks_end(monkeypatch):
    """Whether every process forked so far is gone."""
    pids, original = [], forks._fork

    def noted():
        pids.append(original())
        return pids[-1]

    monkeypatch.setattr(forks, "_fork", noted)
    return lambda: pids and not any(Path(f"/proc/{pid}").exists() for pid in pids)


class Meeting(FedAvg):
    """Goes on only once two clients train at the same time."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "both", multiprocessing.get_context("fork").Barrier(2, timeout=60))

    def prepare(self, local):
        self.both.wait()
        return {}


@pytest.mark.parametrize("net", [conv, noisy])
def test_clients_train_side_by_side_even_where_the_network_draws(net):
    assert not run(Meeting(), federation=TWO, sampling=ALL, number=1, net=net, clients=2).rounds[0].dropped


class Noting(FedAvg):
    """Notes who trains in which process."""

    def __init__(self, path):
        super().__init__()
        object.__setattr__(self, "path", path)

    def prepare(self, local):
        with self.path.open("a") as notes:
            notes.write(f"{local.work.client} {os.getpid()} {torch.get_num_threads()}\n")
        return {}

    def notes(self):
        return [tuple(map(int, line.split())) for line in self.path.read_text().splitlines()]


def test_the_longest_client_is_taken_first_and_a_process_uses_one_core(tmp_path):
    algorithm = Noting(tmp_path / "notes")
    run(algorithm, federation=TWO, sampling=ALL, number=1, net=conv)
    taken = {}
    for client, pid, threads in algorithm.notes():
        taken.setdefault(pid, []).append(SIZES[client])
        assert threads == 1
    assert os.getpid() not in taken
    assert all(sizes == sorted(sizes, reverse=True) for sizes in taken.values())


def test_work_shorter_than_forking_is_done_here(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "WORTH_IT", 60.0)
    algorithm = Noting(tmp_path / "notes")
    run(algorithm, federation=TWO, sampling=ALL, number=3, net=conv)
    here = [pid == os.getpid() for _, pid, _ in algorithm.notes()]
    assert here == [False] * len(SIZES) + [True] * 2 * len(SIZES)  # how long it takes is known after the first round


def test_a_database_of_clients_is_read_before_the_fork(tmp_path, monkeypatch):
    """SQLite forbids to use a connection in a fork."""
    original = Store.__getitem__

    def noting(store, client):
        with (tmp_path / "readers").open("a") as notes:
            notes.write(f"{os.getpid()}\n")
        return original(store, client)

    monkeypatch.setattr(Store, "__getitem__", noting)
    task, begun, disk = start(REGISTRY["fedper"](), net=conv, federation=TWO)
    _, _, memory = start(REGISTRY["fedper"](), net=conv)
    with closing(Store(tmp_path / "clients", begun)) as store:
        disk.restore(store)
        assert same(last(task, begun, disk), last(task, begun, memory))
        assert same(dict(store), memory.clients())
    assert set((tmp_path / "readers").read_text().split()) == {str(os.getpid())}


def last(task, server, federation):
    return list(islice(rounds(task, server, federation, ALL, 0), 3))[-1].server


class Failing(FedAvg):
    def prepare(self, local):
        raise ZeroDivisionError(f"client {local.work.client}")


def test_a_bug_in_a_method_ends_the_run(forks_end):
    with pytest.raises(ZeroDivisionError, match="client") as caught:
        run(Failing(), federation=TWO, net=conv)
    assert "in prepare" in caught.value.__notes__[0]
    assert forks_end()


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_error_that_cannot_travel_is_told():
    def work(item):
        raise Odd("this", "that")

    with pytest.raises(RuntimeError, match="this and that") as caught:
        list(forked(work, [1], 2))
    assert "Odd" in caught.value.__notes__[0]


class Reckless(FedAvg):
    """Adds noise from PyTorch's own generator."""

    def correct(self, local, params, grads):
        return {name: grad + torch.randn_like(grad) for name, grad in grads.items()}


def test_a_method_that_draws_unseen_draws_what_it_would_one_by_one():
    done, reference = run(Reckless(), federation=TWO, net=conv), run(Reckless(), net=conv)
    assert same(done.server, reference.server)


def test_a_process_that_is_ended_ends_the_run_with_a_sentence(forks_end):
    def work(item):
        if item == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(RuntimeError, match=r"signal 9.*memory"):
        list(forked(work, [0, 1, 2, 3], 2))
    assert forks_end()


def test_a_method_that_leaves_the_program_does_not_go_on_in_the_copy(forks_end, capfd):
    with pytest.raises(RuntimeError, match="exit code 1"):
        list(forked(lambda item: sys.exit("enough"), [0], 2))
    assert "enough" in capfd.readouterr().err
    assert forks_end()


def test_who_stops_listening_leaves_no_process_behind(forks_end):
    for item, _ in forked(lambda item: time.sleep(item) or item, [0, 60, 60], 2):
        assert item == 0
        break
    assert forks_end()


def test_more_items_than_processes_and_more_processes_than_items():
    for items, number in [(range(50), 3), (range(2), 5), ([], 2)]:
        assert dict(forked(lambda item: item * item, items, number)) == {item: item * item for item in items}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_come_back_as_they_are(dtype):
    sent = {
        "plain": torch.arange(12).to(dtype).view(3, 4),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
        "turned": torch.arange(6).to(dtype).view(2, 3).T,
    }
    [(_, back)] = forked(lambda item: sent, [0], 1)
    for name, tensor in sent.items():
        assert torch.equal(tensor, back[name])
        assert tensor.stride() == back[name].stride()
        assert tensor.dtype == back[name].dtype
    back["plain"].zero_()  # may be written to


def test_elsewhere_it_is_refused(monkeypatch):
    monkeypatch.setattr(processes, "FORKS", False)
    with pytest.raises(InputError, match="needs Linux"):
        run(FedAvg(), federation=TWO, net=conv)
