"""Whatever a client does, the round completes without it, as if it had never heard of that round.

That the server dies in between changes nothing at all.
"""

import json
import random
import time

import pytest
import torch

from fedlag.errors import InputError
from fedlag.flower import client_app, federation, server_app
from fedlag.flower.server_app import Settings
from fedlag.flower.store import Store
from fedlag.results import read
from flower import grids
from flower.grids import Local
from flower.runs import LAG, app, in_process, on_flower, same, scores, server_of

pytestmark = pytest.mark.usefixtures("no_waiting_for_disks")

PATIENT = Settings(timeout=60.0)
IMPATIENT = Settings(timeout=3.0)  # where somebody never answers


def small(folder, **changes):
    return app(folder, **{"algorithm": "scaffold", "personal": LAG, "rounds": 6, **changes})


def reply(**fields):
    """Another reply; a field is changed by a function."""

    def change(answer):
        changed = {name: function(getattr(answer.reply, name)) for name, function in fields.items()}
        return answer._replace(reply=answer.reply._replace(**changed))

    return grids.changed(change)


def first(function):
    """Changes the first tensor."""

    def change(params):
        name = next(iter(params))
        return {**params, name: function(params[name])}

    return change


FAULTS = {
    "killed before it trains": grids.silent,
    "killed after it trained": grids.silent_after_work,
    "raises": grids.raising,
    "not a number": reply(update=first(lambda x: x * torch.nan)),
    "infinite": reply(update=first(lambda x: x + torch.inf)),
    "huge": reply(update=first(lambda x: x + 1e30)),
    "mis-shaped": reply(update=first(lambda x: x[:1])),
    "that would broadcast": reply(update=first(lambda x: x[:, :1])),
    "of another type": reply(update=first(lambda x: x.double())),
    "mis-keyed": reply(update=lambda params: {f"my.{name}": value for name, value in params.items()}),
    "incomplete": reply(update=lambda params: dict(list(params.items())[1:])),
    "with too much": reply(update=lambda params: {**params, "more": torch.zeros(1)}),
    "without what the method adds": reply(extra=lambda extra: {}),
    "of no weight": reply(examples=lambda count: 0),
    "of negative weight": reply(examples=lambda count: -count),
    "of absurd weight": reply(examples=lambda count: 10**18),
    "of an old round": grids.changed(lambda answer: answer._replace(round=answer.round - 1)),
    "of another client": grids.changed(lambda answer: answer._replace(client=0)),
    "scores instead": grids.changed(lambda answer: answer._replace(reply=None, scores={})),
    "nothing in it": grids.spoilt(lambda content: type(content)()),
    "other text": grids.spoilt(lambda content: grids.described("[]")),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_bad_reply_counts_as_none(tmp_path, fault):
    """In a round whose loss the client feels: it had personal layers before, and trains after."""
    one = small(tmp_path)
    settings = IMPATIENT if fault in (grids.silent, grids.silent_after_work) else PATIENT
    _, folder = on_flower(one, tmp_path, {("train", 4, 2): fault}, settings)
    expected = in_process(one, tmp_path, absent=[(4, 2)])
    assert same(server_of(folder), server_of(expected))
    assert scores(folder) == scores(expected)
    (dropped,) = read(folder).dropped.to_pylist()
    assert (dropped["round"], dropped["client"]) == (4, 2)


def test_a_client_that_trained_two_rounds_in_vain_goes_on_from_before_them(tmp_path):
    one = small(tmp_path)
    vain = {("train", round, 2): grids.silent_after_work for round in (3, 4)}
    _, folder = on_flower(one, tmp_path, vain, IMPATIENT)
    assert same(server_of(folder), server_of(in_process(one, tmp_path, absent=[(3, 2), (4, 2)])))


def test_who_is_left_out_is_named_and_counted(tmp_path, caplog):
    one = small(tmp_path)
    on_flower(one, tmp_path, {("train", round, 2): grids.raising for round in (2, 5)})
    assert "Client 2 is left out of round 2: it failed: <class 'RuntimeError'>:<'out of memory'>" in caplog.text
    assert "Client 2 was left out of 2 rounds" in caplog.text


def test_a_second_answer_changes_nothing(tmp_path, monkeypatch):
    one = small(tmp_path)
    once = federation.exchange

    def twice(*arguments):
        for message in once(*arguments):
            yield message
            yield message

    monkeypatch.setattr(federation, "exchange", twice)
    _, folder = on_flower(one, tmp_path)
    assert same(server_of(folder), server_of(in_process(one, tmp_path)))


def test_a_node_that_comes_back_under_another_number_is_the_same_client(tmp_path):
    one = small(tmp_path)
    grid = Local(tmp_path, tmp_path / "store", 4)

    def restarting(message, answer):
        grid.restart(2)
        return answer(message)

    grid.faults = {("train", 4, 2): restarting}
    _, folder = on_flower(one, tmp_path, grid=grid)
    assert same(server_of(folder), server_of(in_process(one, tmp_path)))


def test_of_two_nodes_that_say_they_are_one_client_only_one_takes_part(tmp_path, caplog):
    one = small(tmp_path)
    grid = Local(tmp_path, tmp_path / "store", 4)
    grid.nodes[999] = 2
    _, folder = on_flower(one, tmp_path, grid=grid)
    assert "Client 2 is now node" in caplog.text
    assert same(server_of(folder), server_of(in_process(one, tmp_path)))
    assert len({what for what, _ in grid.sent if what[0] == "train"}) == len(
        [what for what, _ in grid.sent if what[0] == "train"]
    )


def test_a_client_that_lost_what_it_kept_says_so_and_is_met_anew(tmp_path):
    """It sits out the round in which it says so; then it is sent the server's copy of what is personal."""
    one = small(tmp_path)
    grid = Local(tmp_path, tmp_path / "store", 4)

    def losing(message, answer):
        for path in grid.store.glob("*/site-2/*"):
            path.unlink()
        return answer(message)

    grid.faults = {("train", 4, 2): losing}
    _, folder = on_flower(one, tmp_path, grid=grid)
    (dropped,) = read(folder).dropped.to_pylist()
    assert (dropped["round"], dropped["client"]) == (4, 2)
    assert "no longer has what it kept after round 3" in dropped["reason"]
    births = {what: birth_of(content) for what, content in grid.sent if what[0] == "train"}
    assert births["train", 5, 2]
    assert not births["train", 6, 2]
    assert server_of(folder).met[2] == 5


def birth_of(content):
    from fedlag.flower import wire

    return wire.read_call(content).letter.birth.keys()


def test_a_hung_client_is_given_up_by_the_server_and_by_its_own_node():
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"longer than 0\.1 s"):
        client_app.within(0.1, lambda: time.sleep(60))
    assert time.monotonic() - began < 30


def test_too_few_replies_do_not_count(tmp_path):
    one = small(tmp_path)
    lonely = {("train", 4, client): grids.raising for client in (0, 1, 2)}
    _, folder = on_flower(one, tmp_path, lonely, Settings(timeout=60.0, minimum=2))
    expected = in_process(one, tmp_path, absent=[(4, client) for client in range(4)])
    assert same(server_of(folder), server_of(expected))
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["skipped"] for event in events] == [False, False, False, True, False, False]


def test_too_few_clients_end_the_run_in_a_sentence(tmp_path):
    one = small(tmp_path)
    grid = Local(tmp_path, tmp_path / "store", 1)
    with pytest.raises(InputError, match="1 of the 2 clients that a round needs are there"):
        on_flower(one, tmp_path, settings=Settings(timeout=0.5, minimum=2), grid=grid)


def test_a_minimum_that_can_never_come_is_refused(tmp_path):
    with pytest.raises(InputError, match="minimum = 5 replies can never come"):
        on_flower(small(tmp_path), tmp_path, settings=Settings(timeout=0.5, minimum=5))


def test_a_method_that_pools_examples_is_refused(tmp_path):
    with pytest.raises(InputError, match="stay where they are"):
        on_flower(app(tmp_path, algorithm="centralised"), tmp_path)


@pytest.mark.parametrize("settings", [{"timeout": 0.0}, {"timeout": float("inf")}, {"minimum": 0}])
def test_a_timeout_is_always_set(settings):
    with pytest.raises(InputError, match="is not allowed"):
        Settings(**settings)


# The server dies


class Died(BaseException):
    """As abrupt as a kill."""


def dies(message, answer):
    raise Died


@pytest.mark.parametrize("trained", [(), (0,), (1, 2), (0, 1, 3)], ids=str)
def test_a_server_that_died_in_a_round_goes_on_to_the_same_bits(tmp_path, trained):
    """Whichever clients had trained the round that was never committed."""
    one = small(tmp_path)
    last = next(client for client in range(4) if client not in trained)
    grid = Local(tmp_path, tmp_path / "store", 4, {("train", 4, last): dies})
    grid.first = trained
    with pytest.raises(Died):
        on_flower(one, tmp_path, grid=grid)
    held = {client: Store.of(grid.store, run_name(tmp_path), client).rounds()[-1] for client in range(4)}
    assert held == {client: 3 if client in trained else 2 for client in range(4)}
    goes_on_as_if_nothing_had_happened(one, tmp_path)


def test_a_server_that_died_after_a_round_goes_on_to_the_same_bits(tmp_path):
    """All clients had trained it, some had been scored, and nothing was committed."""
    one = small(tmp_path)
    grid = Local(tmp_path, tmp_path / "store", 4, {("evaluate", 5, 2): dies})
    with pytest.raises(Died):
        on_flower(one, tmp_path, grid=grid)
    goes_on_as_if_nothing_had_happened(one, tmp_path)


def goes_on_as_if_nothing_had_happened(one, folder):
    _, done = on_flower(one, folder, grid=Local(folder, folder / "store", 4))
    expected = in_process(one, folder)
    assert same(server_of(done), server_of(expected))
    assert scores(done) == scores(expected)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_killed_and_however_often_every_bit_is_accounted_for(tmp_path, seed):
    """Clients die before and after they trained and come back, the server dies: as `make soak`, without the waiting."""
    one, rounds = small(tmp_path, rounds=20), range(1, 21)
    chance = random.Random(seed)
    kinds = [grids.raising, grids.raising_after_work, dies]
    planned = {
        ("train", round, chance.randrange(4)): chance.choice(kinds) for round in rounds for _ in range(2) if round % 3
    }
    grid, deaths = Local(tmp_path, tmp_path / "store", 4, planned), 0
    while True:
        grid.first = tuple(chance.sample(range(4), 4))
        grid.restart(chance.randrange(4))
        try:
            _, done = on_flower(one, tmp_path, grid=grid)
            break
        except Died:
            deaths += 1
            died = next(what for what, _ in reversed(grid.sent) if grid.faults.get(what) is dies)
            del grid.faults[died]
    dropped = [(row["round"], row["client"]) for row in read(done).dropped.to_pylist()]
    assert deaths > 2
    assert len(dropped) > 5
    expected = in_process(one, tmp_path, absent=dropped)
    assert same(server_of(done), server_of(expected))
    assert scores(done) == scores(expected)


def run_name(folder):
    return server_app._name(folder / "run")


def test_a_finished_run_is_left_as_it_is(tmp_path):
    one = small(tmp_path)
    on_flower(one, tmp_path)
    grid, _ = on_flower(one, tmp_path)
    assert not grid.sent


def test_another_run_of_the_same_experiment_does_not_take_up_what_clients_kept(tmp_path):
    one = small(tmp_path)
    grid, folder = on_flower(one, tmp_path)
    first = server_of(folder)
    folder.rename(tmp_path / "earlier")
    _, again = on_flower(one, tmp_path, grid=Local(tmp_path, grid.store, 4))
    assert same(server_of(again), first)
