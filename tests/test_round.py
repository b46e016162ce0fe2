"""What a round does, against the paper's Algorithm 1 written out, and piece by piece."""

import copy
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.federations import (
    ALL,
    SEED,
    SIZES,
    SOME,
    TRAINING,
    Cohorts,
    Scheduled,
    Starting,
    Wrapped,
    close,
    conv,
    identical,
    mlp,
    ragged,
    run,
    same,
    start,
    starts,
    work,
)
from torch.nn import functional

from fedlag import tree
from fedlag.algorithm import Algorithm, Finish, Outcome, Phase, Steps, Training
from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.errors import InputError
from fedlag.federation.sequential import Sequential
from fedlag.federation.work import HELD_OUT
from fedlag.flow import Client
from fedlag.lag import LAG
from fedlag.net import Model
from fedlag.optim import SGD, Adam
from fedlag.personal import Named, Nothing, RandomLayers
from fedlag.replies import gather
from fedlag.round import address, begin, broadcast, client_evaluate, client_round, server_round
from fedlag.run import NEWCOMER, evaluate, rounds

SOURCE = ragged()
CLIENTS = range(len(SIZES))
LAYERS = ("body.1", "body.3", "head")  # of mlp
LAYER = "body.3"


def of(layer, params):
    return {name: value for name, value in params.items() if name.startswith(f"{layer}.")}


def mean(values, cohort):
    """Weighted by examples."""
    total = sum(SIZES[client] for client in cohort)
    return {name: sum(values[c][name] * (SIZES[c] / total) for c in cohort) for name in values[cohort[0]]}


# Algorithm 1


class Paper:
    """Algorithm 1 with partial participation as the specification writes it, copies and generations in one table."""

    def __init__(self, decide):
        self.decide = decide  # (updates of the participants, round) -> layers that are personal from now on
        self.globals = Model(mlp()).init()
        self.personal = set()
        self.generation = dict.fromkeys(LAYERS, 0)
        self.copies = {}  # (client, layer) -> (values, generation)

    def start(self, client):
        params = dict(self.globals)
        for layer in self.personal:
            values, generation = self.copies.get((client, layer), (None, -1))
            if generation == self.generation[layer]:
                params |= values
        return params

    def round(self, number, cohort):
        begun = {client: self.start(client) for client in cohort}
        ended = {client: by_hand(begun[client], number, client) for client in cohort}
        chosen = self.decide({client: tree.sub(ended[client], begun[client]) for client in cohort}, number)
        self.globals = mean(ended, cohort)
        for layer in self.personal - chosen:
            self.generation[layer] += 1
        for layer in chosen:
            for client in cohort:
                self.copies[client, layer] = of(layer, ended[client]), self.generation[layer]
        self.personal = chosen


def by_hand(params, round, client):
    net = mlp()
    net.load_state_dict(params)
    for x, y in work(SOURCE, round, client).stream("train").batches(8, 1):
        net.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for value in net.parameters():
                value -= 0.1 * value.grad
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def assert_the_same_at_every_round(rule, paper, cohorts):
    task, server, federation = start(Starting(personal=rule), net=mlp)
    for one in islice(rounds(task, server, federation, Cohorts(cohorts), SEED), len(cohorts)):
        paper.round(one.number, cohorts[one.number])
        assert one.step.personal == {name for layer in paper.personal for name in of(layer, paper.globals)}
        assert close(one.server.params, paper.globals, 1e-5)
        for client, begun in starts(task, one.server, federation).items():
            assert close(begun, paper.start(client), 1e-5), f"client {client} after round {one.number}"


cohort_of_some = st.sets(st.sampled_from(CLIENTS), min_size=1, max_size=3).map(sorted)


@settings(max_examples=15, deadline=None)
@given(
    masks=st.lists(st.sets(st.sampled_from(LAYERS)), min_size=5, max_size=5),
    cohorts=st.lists(cohort_of_some, min_size=5, max_size=5),
)
def test_whatever_is_personal_when_and_whoever_takes_part_it_is_algorithm_1(masks, cohorts):
    patterns = ("", *(" ".join(f"{layer}.*" for layer in mask) for mask in masks))
    assert_the_same_at_every_round(
        Scheduled(patterns), Paper(lambda updates, number: frozenset(masks[number])), cohorts
    )


def most_conflicting(updates, k):
    """Algorithm 2, one pair at a time."""
    scores = {}
    for place, layer in enumerate(LAYERS):
        flat = [torch.cat([v.flatten() for v in of(layer, update).values()]).double() for update in updates.values()]
        cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in combinations(flat, 2)]
        scores[layer] = (-sum(cosine < 0 for cosine in cosines), sum(cosines) / len(cosines), place)
    return frozenset(sorted((layer for layer in LAYERS if scores[layer][0]), key=scores.get)[:k])


@pytest.mark.parametrize("k", [1, 2])
def test_lag_is_algorithm_1_with_the_choice_of_algorithm_2(k):
    decided = []

    def decide(updates, number):
        if len(updates) > 1 and number >= 1:
            decided.append(most_conflicting(updates, k))
        return decided[-1] if decided else frozenset()

    cohorts = [[0, 1, 2], [1, 3, 4], [0, 2, 3], [2], [1, 2, 4], [0, 3, 4], [0, 1, 4], [2, 3, 4]]
    assert_the_same_at_every_round(LAG(k=k, warmup=1), Paper(decide), cohorts)
    assert len(set(decided)) > 1, "the choice changes, or this says little"


# The cases of the specification that are about rounds


def test_with_every_layer_in_conflict_from_the_first_round_lag_is_training_alone():
    lag = run(FedAvg(personal=LAG(k=10, warmup=0)), sampling=ALL)
    for one in lag.rounds:
        assert all(conflict.count > 0 for conflict in one.step.conflicts.values())
        assert one.step.personal == lag.server.params.keys()
    local = run(REGISTRY["local"](), sampling=ALL)
    assert same(lag.federation.clients(), local.federation.clients())
    assert evaluate(lag.task, lag.server, lag.federation) == evaluate(local.task, local.server, local.federation)


@pytest.mark.parametrize("net", [mlp, conv])
def test_frozen_with_the_head_imposed_is_fedper(net):
    imposed, fedper = (
        run(FedAvg(personal=rule), net=net) for rule in (Scheduled(("head.*",), watches=False), Named("head.*"))
    )
    for one, other in zip(imposed.rounds, fedper.rounds, strict=True):
        assert same(one.message, other.message)
        assert same(one.server.params, other.server.params)
    assert same(imposed.federation.clients(), fedper.federation.clients())


@pytest.mark.parametrize(
    ("pattern", "others"), [("body.0.* body.1.*", "body.5.* head.*"), ("head.*", "body.*")], ids=["convolution", "head"]
)
def test_a_layer_that_leaves_is_for_everybody_the_mean_of_what_the_participants_trained(pattern, others):
    cohorts = [[0, 1, 2], [1, 2, 3], [0, 4]]
    done = run(Starting(personal=Scheduled(("", pattern, ""))), sampling=Cohorts(cohorts), number=2, wrap=Wrapped)
    trained = {client: reply.trained for client, reply in done.federation.heard[1][2].items()}
    assert trained[1].keys() == tree.under(done.server.params, pattern)
    everybody = starts(done.task, done.server, done.federation)
    assert everybody.keys() == set(CLIENTS)
    for begun in everybody.values():
        assert close(tree.select(begun, trained[1]), mean(trained, [1, 2, 3]))
        assert same(begun, done.server.params)


@pytest.mark.parametrize("net", [mlp, conv])
def test_who_is_absent_keeps_its_personal_layer_and_gets_the_newest_of_all_others(net):
    cohorts = [[0, 1, 2], [0, 1, 2], [1, 2, 3], [2, 3, 4], [1, 3, 4]]
    done = run(Starting(personal=Scheduled(("", "head.*"))), net=net, sampling=Cohorts(cohorts), number=5)
    after_two = run(Starting(personal=Scheduled(("", "head.*"))), net=net, sampling=Cohorts(cohorts), number=2)
    then = starts(after_two.task, after_two.server, after_two.federation)[0]
    now = starts(done.task, done.server, done.federation)[0]
    assert same(of("head", now), of("head", then))
    assert same(of("head", now), of("head", done.federation.clients()[0].params))
    assert same(of("body", now), of("body", done.server.params))
    assert not close(of("head", now), of("head", done.server.params))
    assert not close(of("body", now), of("body", then))


def test_a_copy_is_not_restored_when_its_layer_left_and_came_back_while_the_client_was_away():
    schedule = Scheduled(("", "head.*", "head.*", "", "head.*"))
    cohorts = [[0, 1, 2], [0, 1, 2], [1, 2, 3], [2, 3, 4], [2, 3], [0, 1]]
    done = run(Starting(personal=schedule), sampling=Cohorts(cohorts), number=6)
    for number in (2, 3, 4):  # left at the end of round 2, back at the end of round 3
        here = run(Starting(personal=schedule), sampling=Cohorts(cohorts), number=number + 1)
        begun = starts(here.task, here.server, here.federation)[0]
        assert same(of("head", begun), of("head", here.server.params))
        old = here.federation.clients()[0].params
        assert not close(of("head", begun), of("head", old))
    assert done.rounds[5].letters[0].birth.keys() == of("head", done.server.params).keys()
    assert same(done.rounds[5].letters[0].birth, of("head", done.rounds[4].server.params))


def test_who_trained_before_but_was_away_when_a_layer_entered_starts_from_the_server_s_copy():
    cohorts = [[0, 1, 2], [1, 2, 3], [2, 3]]
    done = run(Starting(personal=Scheduled(("", "", "head.*"))), sampling=Cohorts(cohorts), number=3)
    everybody = starts(done.task, done.server, done.federation)
    for client in (0, 4):  # away, and never seen
        assert same(of("head", everybody[client]), of("head", done.server.params))
    for client in (1, 2, 3):  # took part in the round at whose end the head entered
        assert same(of("head", everybody[client]), of("head", done.federation.clients()[client].params))
        assert not close(of("head", everybody[client]), of("head", done.server.params))


def test_a_new_client_starts_from_the_server_s_copy_of_everything():
    done = run(Starting(personal=Scheduled(("", "head.*"))), sampling=Cohorts([[0, 1, 2]]))
    assert same(starts(done.task, done.server, done.federation)[4], done.server.params)


def test_the_server_s_copy_of_a_watched_layer_is_the_mean_of_what_was_trained():
    cohorts = [[0, 1], [1, 2, 3], [0, 4]]
    done = run(FedAvg(personal=Scheduled(("head.*",))), sampling=Cohorts(cohorts), number=3, wrap=Wrapped)
    for one, (_, _, replies) in zip(done.rounds, done.federation.heard, strict=True):
        trained = {client: reply.trained for client, reply in replies.items()}
        assert close(of("head", one.server.params), mean(trained, list(trained)))


def test_the_server_s_copy_of_a_layer_nobody_watches_stays_as_it_entered():
    done = run(FedAvg(personal=Scheduled(("", "", "head.*"), watches=False)), sampling=ALL, number=4)
    entered, _, end = (of("head", one.server.params) for one in done.rounds[1:])
    assert same(entered, end)
    assert not same(entered, of("head", done.rounds[0].server.params))


def test_the_mask_found_in_a_round_governs_the_broadcast_at_its_end():
    done = run(FedAvg(personal=LAG(k=1, warmup=2)), sampling=ALL, number=4)
    assert [bool(one.message.personal) for one in done.rounds] == [False, False, False, True]
    for one, following in zip(done.rounds, done.rounds[1:], strict=False):
        assert one.step.personal == following.message.personal


def test_a_frozen_lag_sends_nothing_of_its_layers_either_way_after_the_warm_up():
    done = run(FedAvg(personal=LAG(k=1, warmup=2, mode="frozen")), sampling=ALL, number=5, wrap=Wrapped)
    personal = done.rounds[1].step.personal
    assert personal
    for one, (message, _, replies) in zip(done.rounds[2:], done.federation.heard[2:], strict=True):
        assert message.personal == personal
        assert not message.watched
        assert personal.isdisjoint(message.shared)
        for reply in replies.values():
            assert personal.isdisjoint(tree.keys(reply._replace(scores={})))
        assert all(personal.isdisjoint(sent) for sent in one.sent.values())
        assert not any(one.letters[client].birth for client in CLIENTS)
    assert all(personal.issubset(sent) for sent in done.rounds[1].sent.values())


def test_what_replies_weigh_is_counted_by_client_and_name():
    done = run(FedAvg(personal=Scheduled(("head.*",))), net=mlp, sampling=Cohorts([[0, 1, 2]]), number=1)
    one = {
        "body.1.weight": 4 * 16 * 6,
        "body.1.bias": 4 * 6,
        "body.3.weight": 4 * 6 * 5,
        "body.3.bias": 4 * 5,
        "head.weight": 2 * 4 * 5 * 3,
        "head.bias": 2 * 4 * 3,  # how it moved, and where it ended
    }
    assert done.rounds[0].sent == {0: one, 1: one, 2: one}


# Normalisation


def test_statistics_stay_home_with_the_convolution_they_follow():
    """LAG makes the first layer personal, and the BatchNorm after it with its statistics."""
    rule = LAG(k=1, warmup=0, unit={"first": "body.0.* body.1.*"})
    done = run(Starting(personal=rule), net=conv, sampling=ALL, number=3)
    assert {"body.1.weight", "body.1.running_mean", "body.1.running_var"} < done.server.since.keys()
    means = [begun["body.1.running_mean"] for begun in starts(done.task, done.server, done.federation).values()]
    assert not any(torch.equal(a, b) for a, b in combinations(means, 2))


def test_counters_of_batches_never_appear():
    done = run(FedAvg(personal=LAG(k=10, warmup=0)), net=conv, wrap=Wrapped)
    kept = [client.params for client in done.federation.clients().values()]
    names = set(tree.keys((done.server, tuple(reply for _, _, r in done.federation.heard for reply in r.values()))))
    assert not [name for name in names | set(tree.keys(tuple(kept))) if "num_batches" in str(name)]


@dataclass(frozen=True, kw_only=True)
class HeadOnly(FedAvg):
    """Only the head moves."""

    def phases(self, epochs):
        return (Phase(epochs, "head.*"),)


def test_a_frozen_body_moves_neither_its_parameters_nor_its_statistics():
    done = run(HeadOnly(), net=conv, sampling=ALL)
    before = Model(conv()).init()
    assert same(of("body", done.server.params), of("body", before))
    assert not close(of("head", done.server.params), of("head", before))


# Vectors that belong to parameters

INITIAL = 0.25
MOMENTUM = SGD(lr=1.0, momentum=0.5)


@dataclass(frozen=True, kw_only=True)
class Controlled(Algorithm):
    """Control variates as SCAFFOLD has them, but starting at INITIAL; it notes what it is shown."""

    seen: dict[Any, Any] = field(default_factory=dict)

    def remember(self, params, clients):
        return {"c": tree.map(lambda p: torch.full_like(p, INITIAL), params), "nested": ({"c": dict(params)}, clients)}

    def remember_client(self, params):
        return ({"c": tree.map(lambda p: torch.full_like(p, INITIAL), params)}, 7)

    def message(self, server):
        return {"c": server.memory["c"]}

    def letter(self, server, client):
        return {"for you": (server.memory["c"], client)}

    def correct(self, local, params, grads):
        c, mine = local.message.extra["c"], local.client.memory[0]["c"]
        return {name: g + c[name] - mine[name] if name in c else g for name, g in grads.items()}

    def finish(self, local, end, steps):
        c, mine = local.message.extra["c"], local.client.memory[0]["c"]
        self.seen[local.message.round, local.work.client] = local
        fresh = {name: mine[name] - c[name] + (local.start[name] - end[name]) / steps for name in c}
        return Finish(({"c": fresh}, 8), {"change": tree.sub(fresh, mine)})

    def aggregate(self, server, replies, net):
        self.seen[server.round] = server, replies
        params, optimizer, memory = super().aggregate(server, replies, net)
        change = tree.mean(replies.extra["change"], self.aggregator.weights(replies))
        return Outcome(params, optimizer, {**memory, "c": tree.add(change, memory["c"])})


HEAD = {"head.weight", "head.bias"}


def controlled():
    """The head is personal in rounds 2 and 3 and leaves at the end of round 3; client 4 is away from round 1 on."""
    algorithm = Controlled(personal=Scheduled(("", "", "head.*", "head.*", "")), server=MOMENTUM)
    cohorts = [[0, 1, 4], [0, 1, 2], [0, 2, 3], [0, 2, 3], [0, 1, 4]]
    return run(algorithm, net=mlp, sampling=Cohorts(cohorts), number=5)


def test_vectors_of_a_personal_layer_are_hidden_from_everyone():
    done = controlled()
    for number in (2, 3):
        message = done.rounds[number].message
        assert message.personal == HEAD
        assert HEAD.isdisjoint(tree.keys((message.extra, done.rounds[number].letters[0].extra)))
        for client in (0, 2, 3):
            local = done.task.algorithm.seen[number, client]
            assert HEAD.isdisjoint(tree.keys(local.client.memory))
            assert local.start.keys() >= HEAD
    for number in (1, 2, 3):  # entering, staying, leaving
        server, replies = done.task.algorithm.seen[number]
        assert HEAD.isdisjoint(tree.keys((server.params, server.memory, server.optimizer)))
        assert HEAD.isdisjoint(tree.keys((replies.update, replies.extra)))
    server, replies = done.task.algorithm.seen[4]
    assert server.memory["c"].keys() & replies.extra["change"].keys() >= HEAD


def test_vectors_of_a_layer_that_leaves_begin_anew_for_the_server_and_for_absent_clients_too():
    done = controlled()
    server = done.rounds[3].server
    for name in HEAD:
        assert (server.memory["c"][name] == INITIAL).all()
        assert same(server.memory["nested"][0]["c"][name], server.params[name])
    for client in (0, 1, 4):  # was there, was away while personal, was away altogether
        mine = done.task.algorithm.seen[4, client].client.memory[0]["c"]
        assert all((mine[name] == INITIAL).all() for name in HEAD)
        assert not any((mine[name] == INITIAL).all() for name in mine.keys() - HEAD)
    assert done.task.algorithm.seen[4, 0].client.memory[1] == 8, "what is keyed by no parameter stays"


def test_vectors_of_shared_layers_go_on_as_if_there_were_no_other():
    """Hiding one layer's vectors touches no other: with nothing ever moving in the head, all else is the same."""
    done, bare = (
        controlled(),
        run(Controlled(server=MOMENTUM), net=mlp, sampling=Cohorts([[0, 1, 4], [0, 1, 2]]), number=2),
    )
    assert same(of("body", done.rounds[1].server.memory["c"]), of("body", bare.server.memory["c"]))
    assert not any((value == INITIAL).all() for value in of("body", done.server.memory["c"]).values())


@dataclass(frozen=True, kw_only=True)
class Telling(FedAvg):
    """Every client tells, besides its update, where training ended."""

    def finish(self, local, end, steps):
        return Finish({}, {"end": ({"again": end},)})


@pytest.mark.parametrize("watches", [True, False])
def test_what_an_algorithm_adds_to_a_reply_hides_what_is_personal_and_not_watched(watches):
    done = run(Telling(personal=Scheduled(("head.*",), watches)), net=mlp, sampling=ALL, number=1, wrap=Wrapped)
    for reply in done.federation.heard[0][2].values():
        told = set(done.server.params) if watches else done.server.params.keys() - HEAD
        assert reply.extra["end"][0]["again"].keys() == told


@pytest.mark.parametrize("optimizer", [SGD(lr=0.5, momentum=0.9), Adam(lr=0.01, eps=1e-3, bias_correction=False)])
def test_the_server_s_momentum_of_a_layer_is_hidden_while_personal_and_begins_anew_when_it_leaves(optimizer):
    algorithm = FedAvg(server=optimizer, personal=Scheduled(("", "head.*", "head.*", "")))
    done = run(algorithm, net=mlp, sampling=ALL, number=5)
    fresh = optimizer.init(done.server.params)

    def vectors(server):
        return {key: value for key, value in server.optimizer.items() if isinstance(value, dict)}

    for key, value in vectors(done.rounds[1].server).items():
        assert HEAD.isdisjoint(value), key
        assert not same(of("body", value), of("body", fresh[key]))
    for key, value in vectors(done.rounds[2].server).items():  # left at the end of round 2
        assert same(of("head", value), of("head", fresh[key]))
        assert not same(of("body", value), of("body", fresh[key]))
    for key, value in vectors(done.rounds[3].server).items():
        assert not same(of("head", value), of("head", fresh[key]))


def test_the_server_s_optimizer_steps_along_the_mean_update():
    """Server SGD with momentum, written out."""
    done = run(FedAvg(server=SGD(lr=0.5, momentum=0.9)), net=mlp, sampling=ALL, number=3, wrap=Wrapped)
    params, velocity = Model(mlp()).init(), tree.zeros_like(Model(mlp()).init())
    for _, _, replies in done.federation.heard:
        update = mean({client: reply.update for client, reply in replies.items()}, list(replies))
        velocity = tree.add(update, velocity, alpha=0.9)
        params = tree.add(params, velocity, alpha=0.5)
    assert close(done.server.params, params)


# Training


def trained(training, algorithm=None, client=0, round=0):
    task, server, _ = start(algorithm or FedAvg(), mlp, training=training)
    server = server._replace(round=round)
    kept, reply = client_round(
        task, broadcast(task, server), address(task, server, client), Client(), work(SOURCE, round, client)
    )
    return server.params, kept, reply


def test_the_learning_rate_decays_from_round_to_round():
    """One full-batch step: the update is proportional to the learning rate."""
    updates = []
    for decay in (1.0, 0.5):
        training = Training(batch=100, optimizer=SGD(lr=0.1), decay=decay)
        updates.append(trained(training, round=3)[2].update)
    assert close(updates[1], tree.scale(updates[0], 0.125), 1e-7)


@pytest.mark.parametrize(("settings", "steps"), [({"epochs": 3}, 6), ({"steps": 5}, 5), ({"epochs": 0}, 0)])
def test_training_lasts_for_epochs_or_for_steps(settings, steps):
    _, _, reply = trained(Training(batch=8, **settings))  # client 0 has two batches
    assert reply.steps == steps
    assert reply.examples == SIZES[0]
    assert (tree.sq_norm(reply.update) > 0) == (steps > 0)


@dataclass(frozen=True, kw_only=True)
class InTurns(FedAvg):
    """The head, then the body with another optimiser; it notes the steps it is told of."""

    told: list[Any] = field(default_factory=list)

    def phases(self, epochs):
        return Phase(2, "head.*"), Phase(Steps(3), "body.*", SGD(lr=1e-30))

    def step(self, local, params, state, batch):
        self.told.append((local.number, local.optimizer.lr))
        return super().step(local, params, state, batch)


def test_phases_move_their_own_names_with_their_own_optimizer_and_steps_are_numbered_throughout():
    algorithm = InTurns()
    before, _, reply = trained(Training(batch=8, optimizer=SGD(lr=0.1)), algorithm)
    assert reply.steps == 7
    assert algorithm.told == [*((step, 0.1) for step in range(4)), *((step, 1e-30) for step in range(4, 7))]
    assert not close(of("head", reply.update), of("head", tree.zeros_like(before)), 1e-3)
    assert close(of("body", reply.update), of("body", tree.zeros_like(before)), 1e-20)


@dataclass(frozen=True, kw_only=True)
class Notable(FedAvg):
    """Every hook that stands beside training."""

    averages = "body.*"

    def prepare(self, local):
        twice = lambda local, params, batch: 2 * self.loss(local, params, batch)  # noqa: E731
        moved, steps = local.fit(local.start, (Phase(1),), purpose="prepare", loss=twice)
        return {"steps": steps, "moved": moved}

    def receive(self, local):
        return local.notes["moved"]

    def finish(self, local, end, steps):
        return Finish(None, {"prepared": local.notes["steps"]}, contribution=tree.scale(end, 2.0))


def test_a_client_may_prepare_start_elsewhere_and_contribute_something_else():
    training = Training(epochs=0, batch=8, optimizer=SGD(lr=0.1))
    before, _, reply = trained(training, Notable())
    _, _, once = trained(Training(batch=100, optimizer=SGD(lr=0.1)))
    assert reply.extra == {"prepared": 2}
    assert reply.update.keys() == of("body", before).keys(), "only what is averaged is reported"
    net = mlp()
    for x, y in work(SOURCE, 0, 0).stream("prepare").batches(8, 1):
        net.zero_grad()
        (2 * functional.cross_entropy(net(x), y)).backward()
        with torch.no_grad():
            for value in net.parameters():
                value -= 0.1 * value.grad
    expected = {name: 2 * value - before[name] for name, value in of("body", net.state_dict()).items()}
    assert close(reply.update, expected)
    assert not close(of("body", once.update), reply.update)


@dataclass(frozen=True, kw_only=True)
class BodyOnly(FedAvg):
    averages = "body.*"


@pytest.mark.parametrize("rule", [LAG(k=10, warmup=0), RandomLayers(k=10, warmup=0)])
def test_what_is_not_averaged_is_no_candidate_and_stays_as_it_was_on_the_server(rule):
    done = run(BodyOnly(personal=rule), net=mlp, sampling=ALL, number=3)
    assert done.rounds[0].step.conflicts.keys() <= {"body.1", "body.3"}
    assert done.rounds[-1].step.personal
    assert HEAD.isdisjoint(done.rounds[-1].step.personal)
    assert same(of("head", done.server.params), of("head", Model(mlp()).init()))


@dataclass(frozen=True, kw_only=True)
class AveragesNothing(FedAvg):
    averages = ""


def test_a_rule_for_a_method_that_averages_nothing_is_refused():
    begin(AveragesNothing(), Model(mlp()), TRAINING, 2, SEED)
    with pytest.raises(InputError, match="averages no parameters"):
        begin(AveragesNothing(personal=LAG()), Model(mlp()), TRAINING, 2, SEED)
    assert isinstance(AveragesNothing().personal, Nothing)


@dataclass(frozen=True, kw_only=True)
class Keeping(FedAvg):
    keeps = "body.1.*"


def test_a_client_keeps_what_may_be_personal_and_what_the_algorithm_asks_for():
    _, kept, reply = trained(TRAINING)
    assert kept.params == {}
    before, kept, reply = trained(TRAINING, Keeping(personal=Named("head.*")))
    assert kept.params.keys() == of("body.1", before).keys() | HEAD
    assert close(of("body.1", kept.params), tree.add(of("body.1", reply.update), before))
    _, kept, _ = trained(TRAINING, FedAvg(personal=LAG()))
    assert kept.params.keys() == before.keys()


@dataclass(frozen=True, kw_only=True)
class TwiceDeployed(FedAvg):
    def deployed(self, server):
        return tree.scale(server.params, 2.0)


def test_clients_use_what_is_deployed_and_training_goes_on_from_the_server_s_own():
    twice, plain = run(TwiceDeployed(), net=mlp), run(FedAvg(), net=mlp)
    assert same(twice.server, plain.server)
    doubled = plain.server._replace(params=tree.scale(plain.server.params, 2.0))
    for stage in ("personal", "global"):
        expected = evaluate(plain.task, doubled, plain.federation, stage)
        assert evaluate(twice.task, twice.server, twice.federation, stage) == expected


# Evaluation


@pytest.mark.parametrize("limit", [1000, 3, 1])
def test_scores_are_counted_on_every_held_out_example(limit, monkeypatch):
    """Whatever number of examples fits into memory at once."""
    monkeypatch.setattr("fedlag.round.EVALUATION_BATCH", limit)
    task, server, federation = start(FedAvg(), conv)
    net = conv().eval()
    for client, scores in evaluate(task, server, federation).items():
        for part, score in scores.items():
            x, y = SOURCE(client, part)
            assert score.examples == len(y)
            assert score.accuracy == pytest.approx((net(x).argmax(1) == y).float().mean().item())
            assert score.loss == pytest.approx(functional.cross_entropy(net(x), y).item(), rel=1e-5)


def test_a_client_without_held_out_examples_scores_zero_of_zero():
    def source(client, part):
        batch = SOURCE(client, part)
        return batch if part != "validation" else type(batch)(batch.x[:0], batch.y[:0])

    task, server, federation = start(FedAvg(), source=source)
    for scores in evaluate(task, server, federation).values():
        assert scores["validation"] == (0.0, 0.0, 0)


def test_a_trained_model_is_scored_as_it_ended():
    done = run(REGISTRY["local"](), net=mlp, sampling=ALL, number=1)
    task, server, federation = start(REGISTRY["local"](), mlp)
    message = broadcast(task, server)
    for client, reply in federation.train(message, {c: address(task, server, c) for c in CLIENTS}, ("test",)):
        own = evaluate(done.task, done.server, done.federation)[client]
        assert reply.scores == {"test": own["test"]}


def test_evaluation_leaves_no_trace():
    done = run(FedAvg(personal=LAG(k=1, warmup=1), tune=(Phase(1),)))
    clients = copy.deepcopy(done.federation.clients())
    first = evaluate(done.task, done.server, done.federation)
    assert evaluate(done.task, done.server, done.federation) == first
    assert same(done.federation.clients(), clients)


def test_the_global_stage_is_the_server_s_copy_for_everybody():
    done = run(REGISTRY["fedper"](), net=mlp)
    net = mlp()
    net.load_state_dict(done.server.params)
    for client, scores in evaluate(done.task, done.server, done.federation, "global").items():
        x, y = SOURCE(client, "test")
        assert scores["test"].loss == pytest.approx(functional.cross_entropy(net(x), y).item(), rel=1e-5)
    with pytest.raises(InputError, match=r"'somewhere'.*'personal', 'global'"):
        evaluate(done.task, done.server, done.federation, "somewhere")


@pytest.mark.parametrize("rule", [Nothing(), Named("head.*"), LAG(k=1, warmup=1)])
def test_after_local_training_a_client_scores_what_it_will_score_when_it_has_trained(rule):
    task, server, federation = start(FedAvg(personal=rule))
    coming = rounds(task, server, federation, SOME, SEED, scored=lambda round: HELD_OUT)
    server = [next(coming) for _ in range(3)][-1].server
    clients = copy.deepcopy(federation.clients())
    foreseen, everyone = (evaluate(task, server, federation, f"{stage}-trained") for stage in ("personal", "global"))
    assert same(federation.clients(), clients)
    assert foreseen.keys() == everyone.keys() == set(CLIENTS)
    trained = next(coming).trained
    assert trained
    assert all(foreseen[client] == scores for client, scores in trained.items())
    assert (foreseen == everyone) == isinstance(rule, Nothing)
    assert foreseen != evaluate(task, server, federation)


# What can't be


def test_a_client_that_should_have_a_copy_and_has_none_says_so():
    task, server, _ = start(REGISTRY["fedper"]())
    server = server._replace(met={2: 0}, round=1)
    letter = address(task, server, 2)
    assert not letter.birth
    with pytest.raises(LookupError, match=r"client 2 has no copy of its personal \['head.bias', 'head.weight'\]"):
        client_evaluate(task, broadcast(task, server), letter, Client(), work(SOURCE, 1, 2))


def test_whoever_is_new_is_sent_a_copy_of_everything_personal_and_whoever_took_part_is_not():
    done = run(FedAvg(personal=Scheduled(("", "head.*"))), sampling=Cohorts([[0, 1], [0]]))
    assert same(address(done.task, done.server, NEWCOMER).birth, of("head", done.server.params))
    assert address(done.task, done.server, 0).birth == {}
    assert address(done.task, done.server, 1).birth == {}, "though it was some rounds ago"


@dataclass(frozen=True)
class Reporting(Scheduled):
    """A rule that wants to be told where training ended."""

    told: list[Any] = field(default_factory=list)

    def witness(self, local, end):
        return end

    def update(self, state, replies, round):
        self.told.append(replies.witness)
        return super().update(state, replies, round)


@pytest.mark.parametrize("watches", [True, False])
def test_what_a_rule_asks_for_is_reported_to_the_rule_and_hides_what_is_personal_and_not_watched(watches):
    rule = Reporting(("", "head.*"), watches=watches)
    done = run(FedAvg(personal=rule | Named("body.1.*")), net=mlp, sampling=ALL, number=2, wrap=Wrapped)
    for round, hidden in enumerate(["body.1.*", "body.1.*" if watches else "body.1.* head.*"]):
        names = done.server.params.keys() - tree.under(done.server.params, hidden)
        assert rule.told[round].keys() == names
        assert all(value.shape[0] == 5 for value in rule.told[round].values())
        for reply in done.federation.heard[round][2].values():
            assert reply.witness.keys() == names


def test_a_reply_lost_on_the_way_costs_its_client_nothing_but_that_round():
    """The client has trained and the server doesn't know: it is sent copies it doesn't need, and uses its own."""

    class Lossy(Wrapped):
        def answer(self, round, client, reply):
            if (round, client) != (1, 1):
                yield client, reply

    rule = Scheduled(("", "", "head.*"))
    done = run(Starting(personal=rule), sampling=Cohorts([[0, 1, 2]]), number=2, wrap=Lossy)
    assert address(done.task, done.server, 1).birth.keys() == HEAD
    begun = starts(done.task, done.server, done.federation)[1]
    assert same(of("head", begun), of("head", done.federation.clients()[1].params))
    assert not same(of("head", begun), of("head", done.server.params))


def test_a_client_that_diverges_when_nothing_of_it_is_reported_is_dropped_all_the_same():
    """Or the server would think it has what it lost, and the next round would end the run."""

    class Ill(Sequential):
        def train(self, message, letters, scored):
            normal = self.source
            if message.round == 0:
                x, y = SOURCE(1, "train")
                self.source = lambda client, part: (
                    type(SOURCE(1, "train"))(x * float("inf"), y) if client == 1 else normal(client, part)
                )
            yield from super().train(message, letters, scored)
            self.source = normal

    done = run(REGISTRY["local"](), net=mlp, sampling=ALL, number=2, federation=Ill)
    assert done.rounds[0].dropped.keys() == {1}
    assert 1 not in done.rounds[0].server.met
    assert not done.rounds[1].dropped


def test_gathered_replies_stand_in_the_order_of_the_cohort():
    task, server, federation = start(FedAvg(), mlp)
    cohort = (4, 0, 2)
    message = broadcast(task, server)
    answers = list(federation.train(message, {c: address(task, server, c) for c in cohort}, ()))
    replies = gather(task, message, server.params, cohort, answers[::-1]).replies
    assert replies.ids == cohort
    assert replies.examples.tolist() == [SIZES[client] for client in cohort]
    for place, client in enumerate(cohort):
        assert same(tree.map(lambda value, place=place: value[place], replies.update), dict(answers)[client].update)


def test_equal_updates_of_any_weight_move_the_server_by_that_update():
    task, server, federation = start(FedAvg(), mlp, source=identical(), clients=4, training=Training(batch=10))
    message = broadcast(task, server)
    answers = dict(federation.train(message, {c: address(task, server, c) for c in range(4)}, ()))
    answers = {c: reply._replace(examples=1 + 10**c) for c, reply in answers.items()}
    gathered = gather(task, message, server.params, range(4), answers.items())
    after, _ = server_round(task, server, gathered.replies)
    assert close(after.params, tree.add(answers[0].update, server.params), 1e-6)
