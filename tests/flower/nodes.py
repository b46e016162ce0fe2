"""A Flower grid within the test's own process: messages go through Flower's own byte format to ClientApps and back."""

from collections.abc import Callable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class Nodes(Grid):
    """Nodes 10, 20, …, each with a partition (not in the order of the nodes), a folder and a ClientApp.

    answer: called with (round message, reply) and returns what arrives instead, None for nothing.
    """

    def __init__(self, app: ClientApp, folder, count=4, answer: Callable = lambda sent, reply: reply, **run_config):
        self.app, self.folder, self.answer, self.run_config = app, folder, answer, run_config
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as in a server's process
        self.ids = [10 * (number + 1) for number in range(count)]
        self.sent: list[Message] = []
        self.received: list[Message] = []

    def partition(self, node):
        return (node // 10 - 1) ^ 1

    def context(self, node):
        own = {"partition-id": self.partition(node), "fedlag-store": str(self.folder / f"disk-{node}")}
        return Context(1, node, own, RecordDict(), self.run_config)

    def get_node_ids(self):
        return list(self.ids)

    def get_nodes(self):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            self.sent.append(travelled(message))
            node = message.metadata.dst_node_id
            try:
                reply = travelled(self.app(travelled(message), self.context(node)))
            except Exception as error:
                reply = Message(Error(2, str(error)), reply_to=message)
            reply = self.answer(message, reply)
            replies += [reply] if isinstance(reply, Message) else reply or []
        self.received += replies
        return replies

    def set_run(self, *_): ...
    def run(self): ...
    def create_message(self, *_): ...
    def push_messages(self, *_): ...
    def pull_messages(self, *_): ...


def joins_late(app, folder, round=3):
    """Nodes 10, 20 and 30, which node 40 joins in this round (from 1), so that it is asked in the next."""
    nodes = Nodes(app, folder, 3)

    def answer(sent, reply):
        if sent.content["config"]["server-round"] == round:
            nodes.ids = [10, 20, 30, 40]
        return reply

    nodes.answer = answer
    return nodes


def travelled(message):
    """The message as it comes out of the wire."""
    return message_from_proto(message_to_proto(message))
