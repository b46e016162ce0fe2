"""A Flower grid in this process: real messages and a real ClientApp, and whatever faults a test wants."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedlag.flower import wire
from fedlag.flower.client_app import client_app
from fedlag.flower.wire import Answer

SILENCE = None
Fault = Callable[[Message, Callable[[Message], Message]], "Message | None"]
Round = tuple[str, int, int]  # kind of message, round from 1, client


class Local(Grid):
    """One node for every client. faults: what happens instead of an answer, as (kind, round, client) -> Fault."""

    def __init__(self, home: Path, store: Path, clients: int, faults: Mapping[Round, Fault] | None = None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as Flower's programs begin
        self.app = client_app(home / "app.py")
        self.store = store
        self.nodes = {100 + client: client for client in range(clients)}  # node -> client
        self.faults = dict(faults or {})
        self.run_config: dict[str, str] = {}
        self.node_config: dict[int, dict[str, object]] = {}  # client -> what only its node says
        self.first: tuple[int, ...] = ()  # clients that are quicker than the others
        self.sent: list[tuple[Round, RecordDict]] = []
        self.received: list[tuple[Round, RecordDict]] = []
        self._replies: dict[str, Message] = {}

    def restart(self, client: int) -> None:
        """A node that comes back has another number."""
        self.nodes = {node + 100 * (it == client): it for node, it in self.nodes.items()}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        order = [*self.first, *(client for client in self.nodes.values() if client not in self.first), None]
        for message in sorted(messages, key=lambda one: order.index(self.nodes.get(one.metadata.dst_node_id))):
            name = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = name
            names.append(name)
            reply = self._reply(message)
            if reply is not None:
                self._replies[name] = reply
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def _reply(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        client = self.nodes.get(node)
        if client is None:
            return Message(Error(5, "Node unavailable"), reply_to=message)
        kind, group = message.metadata.message_type, message.metadata.group_id
        what = (kind, int(group or 0), client)
        message.content = carried(message.content)
        self.sent.append((what, message.content))

        def answer(message: Message) -> Message:
            try:
                return self.app(message, self.context(node, client))
            except Exception as error:
                return Message(Error(2, f"{type(error)}:<{str(error)!r}>"), reply_to=message)

        fault = self.faults.get(what)
        reply = answer(message) if fault is None else fault(message, answer)
        if reply is not None and reply.has_content():
            reply.content = carried(reply.content)
            self.received.append((what, reply.content))
        return reply

    def context(self, node: int, client: int) -> Context:
        config = {"partition-id": client, "num-partitions": len(self.nodes), "fedlag-store": str(self.store)}
        config |= self.node_config.get(client, {})
        return Context(1, node, config, RecordDict(), dict(self.run_config))

    # What the runtime does not use

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def carried(content: RecordDict) -> RecordDict:
    """Through the bytes that Flower would send."""
    contents = {name: part.deflate() for name, part in get_all_nested_objects(content).items()}
    return inflate_object_from_contents(content.object_id, contents)


# Faults


def silent(message, answer):
    """The node is killed before it trains, or the network loses the call."""
    return SILENCE


def silent_after_work(message, answer):
    """The node is killed after it trained and kept what it keeps; the reply never leaves."""
    answer(message)
    return SILENCE


def raising(message, answer):
    return Message(Error(2, "<class 'RuntimeError'>:<'out of memory'>"), reply_to=message)


def raising_after_work(message, answer):
    """The client has trained and kept what it keeps when it fails."""
    answer(message)
    return raising(message, answer)


def changed(change: Callable[[Answer], Answer]) -> Fault:
    """Trains, and says something else."""

    def fault(message, answer):
        said = wire.read_answer(answer(message).content)
        return Message(wire.write(change(said)), reply_to=message)

    return fault


def spoilt(change: Callable[[RecordDict], RecordDict]) -> Fault:
    """Trains, and sends other records."""

    def fault(message, answer):
        return Message(change(answer(message).content), reply_to=message)

    return fault


def described(text: str) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord(), "fedlag": ConfigRecord({"json": text})})
