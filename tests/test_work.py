"""Who sees which examples when."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlag.algorithm import Steps
from fedlag.federation.work import ClientWork
from fedlag.flow import Batch

law = settings(deadline=None)  # a busy machine is no counterexample

sizes = st.integers(1, 40)
batches = st.integers(1, 12)
rounds = st.integers(0, 5)


def numbered(size):
    """Examples that can be told apart: x and y both say which one it is."""
    x = torch.arange(size, dtype=torch.float32)
    return lambda client, part: Batch(x.reshape(size, 1, 1, 1), torch.arange(size))


def work(size=20, seed=0, round=0, client=0):
    return ClientWork(numbered(size), seed, round, client)


def rows(drawn):
    return [batch.y.tolist() for batch in drawn]


@law
@given(size=sizes, batch=batches, epochs=st.integers(0, 4), round=rounds)
def test_every_epoch_covers_every_example_once_in_batches_of_the_size_asked_for(size, batch, epochs, round):
    drawn = rows(work(size, round=round).stream("train").batches(batch, epochs))
    assert len(drawn) == epochs * -(-size // batch)
    for epoch in range(epochs):
        own = drawn[epoch * -(-size // batch) : (epoch + 1) * -(-size // batch)]
        assert sorted(row for one in own for row in one) == list(range(size))
        assert all(len(one) == batch for one in own[:-1])


@law
@given(size=sizes, batch=batches, steps=st.integers(0, 20))
def test_steps_are_so_many_batches_epoch_after_epoch(size, batch, steps):
    drawn = rows(work(size).stream("train").batches(batch, Steps(steps)))
    assert len(drawn) == steps
    assert drawn == list(islice(rows(work(size).stream("train").batches(batch, 1 + steps)), steps))


@law
@given(size=sizes, batch=batches)
def test_images_stay_with_their_classes(size, batch):
    stream = work(size).stream("train").batches(batch, 1)
    assert all(torch.equal(x.flatten(), y.float()) for x, y in stream)
    x, y = work(size).draw("support", 3, batch)
    assert torch.equal(x.flatten(), y.float())


def test_epochs_are_shuffled_anew():
    first, second = rows(work(100).stream("train").batches(100, 2))
    assert first != second != list(range(100)) != first


def test_later_calls_go_on_drawing():
    stream = work(9).stream("train")
    in_parts = rows(stream.batches(4, 1)) + rows(stream.batches(4, 2))
    assert in_parts == rows(work(9).stream("train").batches(4, 3))


def test_a_stream_begins_anew_each_time_it_is_asked_for():
    one = work()
    assert rows(one.stream("train").batches(8, 2)) == rows(one.stream("train").batches(8, 2))


def test_seed_round_client_and_purpose_all_matter():
    places = [
        *(work(seed=1), work(round=1), work(client=1), work()),
        *(work(round=1, client=2), work(round=2, client=1), work(seed=2, round=0, client=1)),
    ]
    orders = [tuple(rows(place.stream("train").batches(20, 1))[0]) for place in places]
    orders.append(tuple(rows(work().stream("tune").batches(20, 1))[0]))
    assert len(set(orders)) == len(orders)
    seeds = [place.seed("train") for place in places] + [work().seed("tune")]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_one_purpose_does_not_disturb_another():
    one = work()
    before = rows(one.stream("train").batches(8, 1))
    list(one.stream("stats").batches(3, 5))
    one.seed("train")
    one.draw("train", 0, 4)
    assert rows(one.stream("train").batches(8, 1)) == before


def test_draws_have_a_number_each_and_repeat():
    drawn = [work().draw("support", number, 6).y.tolist() for number in range(20)]
    assert drawn == [work().draw("support", number, 6).y.tolist() for number in range(20)]
    assert len(set(map(tuple, drawn))) == 20
    assert len(work(size=2).draw("support", 0, 6).y) == 6, "with replacement, so few examples are enough"


def test_no_global_random_state_is_touched():
    torch.manual_seed(3)
    np.random.seed(3)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    list(work().stream("train").batches(4, 3))
    work().draw("support", 0, 6)
    work().seed("train")
    assert torch.equal(before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()


def test_shuffling_leaves_the_examples_as_they_are():
    source = numbered(12)
    batch = source(0, "train")
    list(ClientWork(lambda client, part: batch, 0, 0, 0).stream("train").batches(5, 3))
    assert torch.equal(batch.y, torch.arange(12))


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_examples_are_those_of_the_client_and_part(part):
    asked = []
    ClientWork(lambda client, part: asked.append((client, part)), 0, 0, 7).examples(part)
    assert asked == [(7, part)]
