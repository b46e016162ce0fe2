"""What a round is: broadcast, address, client_round, gather, server_round, client_evaluate."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional

from fedlag import layers, tree
from fedlag.algorithm import Algorithm, Finish, Training
from fedlag.divergence import Conflict
from fedlag.errors import InputError
from fedlag.fit import Fit, fit, gradient, not_ready
from fedlag.flow import Batch, Client, Letter, Local, Message, Replies, Reply, Score, Scores, Server, Work
from fedlag.kernels import prefer_fast_products
from fedlag.layers import Anatomy
from fedlag.memory import keep_what_is_freed
from fedlag.net import Model
from fedlag.personal import Nothing
from fedlag.randomness import seeded
from fedlag.tree import Params

STAGES = ("personal", "global")  # a client's own model after the broadcast; the server's copy of everything
TRAINED = ("personal-trained", "global-trained")  # the same after local training
EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Task:
    """What stays the same in every round of a run."""

    algorithm: Algorithm
    model: Model
    training: Training
    anatomy: Anatomy
    trained: tuple[str, ...]  # names that gradients move
    carried: tuple[str, ...]  # names that no gradient moves: BatchNorm statistics and the like
    kept: frozenset[str]  # names a client keeps a copy of
    averaged: frozenset[str]  # names the server averages
    clients: int
    fit: Fit = fit  # how clients train; a federation that trains many at once brings its own
    draws: bool = True  # whether training may draw from PyTorch's own generator


def begin(algorithm: Algorithm, model: Model, training: Training, clients: int, seed: int) -> tuple[Task, Server]:
    """The task, and the server before the first round."""
    prefer_fast_products()
    keep_what_is_freed()
    params = model.init()
    extension = algorithm.extend(model, params, seed)
    trained = (*model.parameter_names, *extension.trained)
    params = {**params, **extension.trained, **extension.carried}
    averaged = tree.under(params, algorithm.averages)
    if not averaged and not isinstance(algorithm.personal, Nothing):
        raise InputError(
            f"{type(algorithm).__name__} averages no parameters, so nothing can be left out of the average; "
            f"run it without {algorithm.personal}."
        )
    anatomy = layers.anatomy(model, params)
    anatomy = anatomy._replace(modules=layers.without(anatomy, params.keys() - averaged).modules)
    kept = algorithm.personal.reach(anatomy) | tree.under(params, algorithm.keeps)
    carried = tuple(name for name in params if name not in trained)
    task = Task(algorithm, model, training, anatomy, trained, carried, kept, averaged, clients)
    server = Server(
        round=0,
        params=params,
        optimizer=algorithm.server.init(tree.select(params, trained)),
        rule=algorithm.personal.init(anatomy),
        memory=algorithm.remember(params, clients),
        since={},
        met={},
    )
    return task, server


# Server to client


def broadcast(task: Task, server: Server) -> Message:
    """What every participant is sent: nothing that is personal."""
    rule = task.algorithm.personal
    personal = rule.personal(server.rule)
    return Message(
        round=server.round,
        shared=tree.without(server.params, personal),
        personal=personal,
        since=server.since,
        watched=rule.watched(server.rule),
        extra=tree.without(task.algorithm.message(server), personal),
    )


def address(task: Task, server: Server, client: int) -> Letter:
    """What only this participant is sent, with a copy of personal layers if it can't have a valid one."""
    personal = task.algorithm.personal.personal(server.rule)
    met = server.met.get(client, -1)
    missing = _void(personal, server.since, met)
    extra = tree.without(task.algorithm.letter(server, client), personal)
    return Letter(birth=tree.select(server.params, missing), extra=extra, met=met)


# On the client


def client_round(
    task: Task, message: Message, letter: Letter, client: Client, work: Work
) -> tuple[Client, Reply | Exception]:
    """One participant's round: receive, train, reply.

    A round that ends in numbers that are not finite leaves no trace, and the server must know: it would take the client
    for one that has what it trained.
    """
    with own_randomness(task, work, "train"):
        local, params = client_begins(task, message, letter, client, work)
        end, steps = local.fit(params, task.algorithm.phases(task.training.length), purpose="train")
        ending = client_ends(task, local, end, steps)
    return client_replies(task, client, local, ending)


class Ending(NamedTuple):
    """Where a participant's training ended, and what its method makes of that."""

    params: Params
    steps: int
    finish: Finish
    witness: Params


def client_begins(task: Task, message: Message, letter: Letter, client: Client, work: Work) -> tuple[Local, Params]:
    """A participant about to train, and where it starts."""
    local = settle(task, message, letter, client, work)
    local = _ready(task, local._replace(notes=task.algorithm.prepare(local)))
    return local, task.algorithm.receive(local)


def client_ends(task: Task, local: Local, end: Params, steps: int) -> Ending:
    finish = task.algorithm.finish(local, end, steps)
    return Ending(end, steps, finish, task.algorithm.personal.witness(local, end))


def client_replies(task: Task, client: Client, local: Local, ending: Ending) -> tuple[Client, Reply | Exception]:
    """What a participant keeps and tells. `client` is what it kept before."""
    (memory, extra, contribution), end, message = ending.finish, ending.params, local.message
    if not tree.finite((end, memory, extra, ending.witness)):
        return client, ArithmeticError("its training ended in numbers that are not finite")
    given = end if contribution is None else contribution
    reply = Reply(
        update=tree.sub(tree.select(given, told(task, message)), local.start),
        trained=tree.select(given, message.watched),
        witness=tree.without(ending.witness, message.personal - message.watched),
        extra=tree.without(extra, message.personal - message.watched),
        examples=len(local.work.examples("train").y),
        steps=ending.steps,
        scores=score(task, local, end),
    )
    return Client(message.round, tree.select(end, task.kept), memory), reply


def told(task: Task, message: Message) -> frozenset[str]:
    """The names whose update a participant reports."""
    return task.averaged & message.shared.keys() | message.watched


def client_evaluate(
    task: Task, message: Message, letter: Letter, client: Client, work: Work, stage: str = "personal"
) -> Scores:
    """How a client does on its own held-out examples: with its own model or the server's copy, as it is or trained."""
    known = Client() if stage.startswith("global") else client
    if stage in TRAINED:
        with own_randomness(task, work, "train"):
            local, params = client_begins(task, message, letter, known, work)
            return score(
                task, local, local.fit(params, task.algorithm.phases(task.training.length), purpose="train")[0]
            )
    local = settle(task, message, letter, known, work)
    if stage == "global":
        return score(task, local, local.start)
    with own_randomness(task, work, "tune"):
        return score(task, local, task.algorithm.personalize(local))


def score(task: Task, local: Local, params: Params) -> Scores:
    """Accuracy and loss on the held-out parts this client's work asks for."""
    task.model.eval()
    with torch.no_grad():
        return {part: _score(task, local, params, local.work.examples(part)) for part in local.work.scored}


def _score(task: Task, local: Local, params: Params, examples: Batch) -> Score:
    correct, loss = 0, 0.0
    for x, y in zip(torch.split(examples.x, EVALUATION_BATCH), torch.split(examples.y, EVALUATION_BATCH), strict=True):
        scores = task.algorithm.predict(local, params, x)
        correct += int((scores.argmax(1) == y).sum())
        loss += float(functional.cross_entropy(scores, y, reduction="sum"))
    count = len(examples.y)
    return Score(correct / max(count, 1), loss / max(count, 1), count)


def settle(task: Task, message: Message, letter: Letter, client: Client, work: Work) -> Local:
    """What a client may look at: it starts from shared as received plus personal as kept.

    Copies made before a name last changed sides are void: the server's copy stands in for parameters, the initial
    value for memory.
    """
    void = _void(message.personal | message.since.keys(), message.since, client.round)
    kept = tree.select(client.params, message.personal - void)
    start = {**message.shared, **letter.birth, **kept}
    lost = message.personal - start.keys()
    if lost:
        raise LookupError(f"client {work.client} has no copy of its personal {sorted(lost)} and was sent none")
    memory = client.memory
    if memory is None or void:
        fresh = task.algorithm.remember_client(start)
        memory = fresh if memory is None else tree.renew(memory, fresh, void)
    known = client._replace(memory=tree.without(memory, message.personal))
    grad = partial(gradient, task.trained, task.carried, forward=task.training.forward)
    optimizer = task.training.optimizer.slowed(task.training.decay**message.round)
    local = Local(task.model, task.training, message, letter, known, work, start, {}, 0, grad, optimizer, not_ready)
    return _ready(task, local)


def _ready(task: Task, local: Local) -> Local:
    """The same, whose `fit` shows this very local to the algorithm."""
    return local._replace(fit=partial(task.fit, task, local))


def own_randomness(task: Task, work: Work, purpose: str) -> AbstractContextManager[None]:
    """Dropout and the like draw from a stream of this client and round, and disturb no other."""
    return seeded(work.seed(purpose)) if task.draws else nullcontext()


def _void(names: Iterable[str], since: dict[str, int], round: int) -> frozenset[str]:
    """The names of which a client that last trained in `round` (-1: never) holds nothing valid."""
    return frozenset(name for name in names if round < since.get(name, 0))


# On the server


class Step(NamedTuple):
    """What a round did on the server, for looking at."""

    conflicts: dict[str, Conflict]
    personal: frozenset[str]  # from now on


def server_round(task: Task, server: Server, replies: Replies) -> tuple[Server, Step]:
    """Measure, decide what is personal from now on, average the rest."""
    algorithm, rule = task.algorithm, task.algorithm.personal
    before = rule.personal(server.rule)
    state, conflicts = rule.update(server.rule, replies, server.round)
    after = rule.personal(state)
    apart = before | after
    entered, left = after - before, before - after

    weights = algorithm.aggregator.weights(replies)
    update = tree.without(replies.update, apart)
    moved = {name: value for name, value in update.items() if name in task.trained}
    carried = {name: value for name, value in update.items() if name not in task.trained}
    outcome = algorithm.aggregate(
        server._replace(
            params=tree.select(server.params, moved),
            optimizer=tree.without(server.optimizer, apart),
            memory=tree.without(server.memory, apart),
        ),
        replies._replace(update=moved, trained={}, witness={}, extra=tree.without(replies.extra, apart)),
        task.model,
    )
    enters = tree.select(replies.update, entered)
    params = {
        **server.params,
        **outcome.params,
        **tree.add(tree.mean(carried, weights), server.params),
        **tree.add(tree.mean(enters, weights), server.params),
        **tree.mean(replies.trained, weights),
    }
    changed = entered | left
    since = server.since | dict.fromkeys(sorted(entered), server.round)
    since |= dict.fromkeys(sorted(left), server.round + 1)
    optimizer, memory = outcome.optimizer, outcome.memory
    if changed:
        optimizer = tree.renew(optimizer, algorithm.server.init(tree.select(params, task.trained)), changed)
        memory = tree.renew(memory, algorithm.remember(params, task.clients), changed)
    met = server.met | dict.fromkeys(replies.ids, server.round)
    return Server(server.round + 1, params, optimizer, state, memory, since, met), Step(conflicts, after)
