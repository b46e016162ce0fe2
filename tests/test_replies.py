"""Replies find their row as they come, and lie in memory once."""

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import mlp, start

from fedlag.algorithms.fedavg import FedAvg
from fedlag.flow import Reply
from fedlag.personal import Named
from fedlag.replies import Rows, gather
from fedlag.round import broadcast

law = settings(deadline=None)  # a busy machine is no counterexample

COHORT = (2, 3, 5, 7, 11)
TASK, SERVER, _ = start(FedAvg(), mlp)
MESSAGE = broadcast(TASK, SERVER)


def reply(client):
    """An update all of whose numbers are the client's."""
    update = {name: torch.full_like(value, client) for name, value in SERVER.params.items()}
    return Reply(update=update, trained={}, witness={}, extra={}, examples=client, steps=1, scores={})


@law
@given(st.sets(st.sampled_from(COHORT)), st.permutations(COHORT))
def test_whoever_fails_and_whoever_is_first_the_others_stand_in_the_order_of_the_cohort(failing, arriving):
    answers = [(client, ValueError("no") if client in failing else reply(client)) for client in arriving]
    found = gather(TASK, MESSAGE, SERVER.params, COHORT, answers)
    left = [client for client in COHORT if client not in failing]
    assert found.dropped.keys() == failing
    assert (found.replies is None) == (not left)
    if found.replies:
        assert found.replies.ids == tuple(left)
        assert found.replies.examples.tolist() == left
        for name, value in SERVER.params.items():
            assert torch.equal(found.replies.update[name], torch.stack([reply(u).update[name] for u in left]))
            assert found.replies.update[name].dtype == value.dtype


def test_an_update_is_let_go_when_it_has_been_put_in_its_row():
    arrived = []

    def answers():
        for client in COHORT:
            alive = [old for old in arrived if old() is not None]
            assert len(alive) <= 1, "only the latest may still be at hand"
            fresh = reply(client)
            arrived.append(weakref.ref(fresh.update["head.weight"]))
            yield client, fresh
            del fresh

    assert gather(TASK, MESSAGE, SERVER.params, COHORT, answers()).replies
    assert len(arrived) == len(COHORT)


def test_rows_close_ranks_within_the_memory_there_is():
    rows = Rows(3, {"w": torch.zeros(2), "count": torch.tensor(0)})
    held = rows.put(0, {"w": torch.zeros(2), "count": torch.tensor(5)})["w"].untyped_storage().data_ptr()
    for row in (2, 1):
        put = rows.put(row, {"w": torch.full((2,), float(row)), "count": torch.tensor(row)})
        assert put["w"].tolist() == [row, row]
    left = rows.only([1, 2])
    assert left["w"].tolist() == [[1, 1], [2, 2]]
    assert left["count"].tolist() == [1, 2]
    assert left["w"].untyped_storage().data_ptr() == held


@pytest.mark.parametrize("personal", ["head.*", "*"])
def test_there_is_no_room_for_what_stays_home(personal):
    task, server, _ = start(FedAvg(personal=Named(personal)), mlp)
    message = broadcast(task, server)
    answer = reply(2)._replace(update={name: torch.ones_like(value) for name, value in message.shared.items()})
    found = gather(task, message, server.params, [2], [(2, answer)])
    assert found.replies.update.keys() == message.shared.keys()
