"""Clients on every core."""

import threading
from functools import partial

import pytest
import torch
from laws.federations import ALL, SIZES, conv, noisy, ragged, run

from fedlag.algorithms import FedAvg
from fedlag.federation.threaded import Threaded


class Noting(FedAvg):
    """Notes which client trains on which thread."""

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "seen", [])

    def prepare(self, local):
        self.seen.append((local.work.client, threading.current_thread().name, torch.get_num_threads()))
        return {}


def test_the_longest_client_is_taken_first():
    algorithm = Noting()
    run(algorithm, federation=partial(Threaded, workers=1), sampling=ALL, number=1, net=conv)
    longest = sorted(range(len(SIZES)), key=lambda client: -SIZES[client])
    assert [client for client, _, _ in algorithm.seen] == longest


def test_a_worker_uses_one_core():
    algorithm = Noting()
    run(algorithm, federation=partial(Threaded, workers=2), sampling=ALL, number=2, net=conv)
    assert {threads for _, _, threads in algorithm.seen} == {1}
    assert len({name for _, name, _ in algorithm.seen}) == 2


class Meeting(FedAvg):
    """Goes on only once two clients train at the same time."""

    def __init__(self, timeout):
        super().__init__()
        object.__setattr__(self, "both", threading.Barrier(2, timeout=timeout))

    def prepare(self, local):
        self.both.wait()
        return {}


def meet(net, timeout):
    return run(Meeting(timeout), federation=partial(Threaded, workers=2), sampling=ALL, number=1, net=net, clients=2)


def test_clients_train_side_by_side():
    assert not meet(conv, timeout=20).rounds[0].dropped


def test_networks_that_draw_take_turns():
    with pytest.raises(threading.BrokenBarrierError):
        meet(noisy, timeout=0.2)


class Reckless(FedAvg):
    """Adds noise from PyTorch's own generator."""

    def correct(self, local, params, grads):
        return {name: grad + torch.randn_like(grad) for name, grad in grads.items()}


def test_a_method_that_draws_unseen_is_told_to_train_one_by_one():
    with pytest.raises(RuntimeError, match=r"Reckless.*sequential"):
        run(Reckless(), federation=Threaded, net=conv)


class Failing(FedAvg):
    def prepare(self, local):
        raise ZeroDivisionError(f"client {local.work.client}")


def test_a_bug_in_a_method_ends_the_run():
    with pytest.raises(ZeroDivisionError, match="client"):
        run(Failing(), federation=Threaded, net=conv, source=ragged())
