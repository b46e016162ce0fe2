"""A round of FedLAG on a server that knows nodes by number and a model by its names: fedlag's own round around it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, cast

import torch

from fedlag.algorithm import Training
from fedlag.algorithms.fedavg import FedAvg
from fedlag.flow import Server
from fedlag.flower import anatomy
from fedlag.flower.instructions import Instructions
from fedlag.flower.receipts import Answer, doubles, outliers
from fedlag.lag import LAG
from fedlag.net import Model
from fedlag.replies import gather
from fedlag.round import Task, address, broadcast, server_round
from fedlag.tree import Params

log = logging.getLogger("flwr.fedlag")


class Settled(NamedTuple):
    """What became of a round."""

    server: Server
    used: tuple[Answer, ...]  # in the order in which they were added up; empty if the round changed nothing
    odd: tuple[tuple[int, str], ...]  # node and why an answer of it was not used


def begin(lag: LAG, params: Params) -> tuple[Task, Server]:
    """The task, and the server before the first round.

    The server's memory holds the name of the run, and the counters among the weights: numbers that are not averaged.
    """
    floats = {name: value for name, value in params.items() if value.is_floating_point()}
    counters = {name: value for name, value in params.items() if name not in floats}
    known = anatomy.read_off(floats)
    algorithm = FedAvg(personal=lag)
    task = Task(
        algorithm=algorithm,
        model=cast(Model, None),  # no server has the network itself, and FedAvg's never asks for it
        training=Training(),
        anatomy=known,
        trained=tuple(name for name in floats if not anatomy.is_statistic(name)),
        carried=tuple(name for name in floats if anatomy.is_statistic(name)),
        kept=lag.reach(known),
        averaged=frozenset(floats),
        clients=0,
    )
    memory = {"run": secrets.token_hex(16), "names": tuple(params), "counters": counters}
    return task, Server(0, floats, algorithm.server.init(floats), lag.init(known), memory, {}, {})


def whole(server: Server) -> Params:
    """Everything in the model's order."""
    values = {**server.params, **server.memory["counters"]}
    return {name: values[name] for name in server.memory["names"]}


def shared(task: Task, server: Server) -> Params:
    """What every node is sent, in the model's order."""
    personal = task.algorithm.personal.personal(server.rule)
    return {name: value for name, value in whole(server).items() if name not in personal}


def instruct(task: Task, server: Server, node: int) -> Instructions:
    message = broadcast(task, server)
    return Instructions(
        run=server.memory["run"],
        round=server.round,
        names=server.memory["names"],
        personal={name: server.since.get(name, 0) for name in sorted(message.personal)},
        watched=tuple(sorted(message.watched)),
        keep=tuple(sorted(task.kept)),
        birth=address(task, server, node).birth,
    )


def settle(
    task: Task, server: Server, asked: Sequence[int], answers: Iterable[Answer], min_replies: int, outlier: float
) -> Settled:
    """The server after a round, from whichever answers can be used.

    Partitions give the order, because sums depend on it and the numbers of nodes are random.
    """
    first: dict[int, Answer] = {}
    odd: list[tuple[int, str]] = []
    for answer in sorted(answers, key=lambda answer: answer.node):
        if answer.node not in asked:
            said = f" (and said: {answer.reply})" if isinstance(answer.reply, Exception) else ""
            odd.append((answer.node, f"it was not asked{said}"))
        elif answer.node in first:
            odd.append((answer.node, "it answered before"))
        else:
            first[answer.node] = answer
    refused = doubles(first.values()) | outliers(first.values(), outlier)
    given = [(node, ValueError(refused[node]) if node in refused else one.reply) for node, one in first.items()]
    order = sorted(asked, key=lambda node: _place(first.get(node), node))
    gathered = gather(task, broadcast(task, server), server.params, order, given)
    odd += gathered.dropped.items()
    replies = gathered.replies
    if replies is None or len(replies.ids) < min_replies:
        return Settled(forgo(server, asked), (), tuple(odd))
    after, _ = server_round(task, server, replies)
    used = tuple(first[node] for node in replies.ids)
    counters = {
        name: torch.stack([answer.counters[name] for answer in used]).amax(0) for name in server.memory["counters"]
    }
    after = after._replace(memory={**server.memory, "counters": counters})
    return Settled(forget(after, set(asked) - set(replies.ids)), used, tuple(odd))


def forgo(server: Server, asked: Collection[int]) -> Server:
    """The server after a round that changes nothing."""
    return forget(server, asked)._replace(round=server.round + 1)


def forget(server: Server, nodes: Collection[int]) -> Server:
    """These nodes may have lost what they kept: when next asked, they are sent the server's copy as well."""
    return server._replace(met={node: round for node, round in server.met.items() if node not in nodes})


def _place(answer: Answer | None, node: int) -> tuple[int, int]:
    return (node if answer is None or answer.partition is None else answer.partition, node)
