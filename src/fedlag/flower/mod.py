"""`keep_personal`: the one line that lets an ordinary PyTorch ClientApp keep its personal layers.

The app receives a whole model and answers with a whole model, as ever. What is personal comes from the node's own
files and goes back there; the server is sent the rest.
"""

from __future__ import annotations

import copy
import logging

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedlag import tree
from fedlag.errors import InputError
from fedlag.flow import Client
from fedlag.flower import instructions
from fedlag.flower.instructions import CONFIG, RECEIPT, TRAINED, UPDATE, Instructions, odd, to_arrays, to_tensors
from fedlag.flower.store import Store, root
from fedlag.tree import Params

log = logging.getLogger("flwr.fedlag")  # where Flower says what it does

UNMET = 6  # Flower's code for a mod that cannot work with what it was given


def keep_personal(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A Flower mod: `ClientApp(mods=[keep_personal])`. With any strategy but FedLAG it changes nothing."""
    found = [key for key, config in message.content.config_records.items() if CONFIG in config]
    if not found:
        return call_next(message, context)
    told, config = instructions.read(message.content.config_records[found[0]])
    store = Store.of(root(context), told.run, site(context))
    ((key, shared),) = message.content.array_records.items()
    try:
        personal = _personal(told, store.load(before=told.round))
    except LookupError as error:
        return _refusal(message, error)
    own = to_arrays(personal)
    whole = ArrayRecord({name: own[name] if name in personal else shared[name] for name in told.names})
    inner = copy.copy(message)
    inner.content = RecordDict({**message.content, key: whole, found[0]: config})
    reply = call_next(inner, context)
    if reply.has_error() or not message.metadata.message_type.startswith("train"):
        return reply
    try:
        answered, end = _trained(reply, to_tensors(whole))
    except ValueError as error:
        return _refusal(message, error)
    store.save(Client(told.round, tree.select(end, told.keep)))
    receipt = ConfigRecord({"round": told.round})
    if "partition-id" in context.node_config:
        receipt["partition"] = site(context)
    records = {**reply.content, RECEIPT: receipt}
    records[answered] = ArrayRecord({name: reply.content.array_records[answered][name] for name in shared})
    if told.watched:
        watched = tree.select(end, told.watched)
        records |= {UPDATE: to_arrays(tree.sub(watched, personal)), TRAINED: to_arrays(watched)}
    reply.content = RecordDict(records)
    return reply


def site(context: Context) -> int:
    """Whose layers these are: the number of the partition, or of the node where it has none."""
    given = context.node_config.get("partition-id", context.node_id)
    try:
        return int(given)
    except ValueError:
        raise InputError(f"partition-id = {given!r} is not allowed; it must be a whole number.") from None


def _personal(told: Instructions, client: Client) -> Params:
    """Personal layers as kept, or the server's copy where none is valid."""
    valid = [name for name, since in told.personal.items() if client.round >= since]
    known = {**told.birth, **tree.select(client.params, valid)}
    lost = sorted(told.personal.keys() - known.keys())
    if lost:
        raise LookupError(
            f"this node has lost its personal {', '.join(lost)}; it is sent the server's copy when it is asked again"
        )
    return tree.select(known, told.personal)


def _trained(reply: Message, start: Params) -> tuple[str, Params]:
    """The key of the app's weights, and the weights, if they are of the model that was sent."""
    records = reply.content.array_records
    if len(records) != 1:
        raise ValueError(f"keep_personal needs a reply with one ArrayRecord, the model's weights, not {len(records)}")
    ((key, arrays),) = records.items()
    end = to_tensors(arrays)
    if difference := odd(end, start):
        raise ValueError(f"the app answered with other weights than it was sent: {difference}")
    if not tree.finite(end):
        raise ValueError("its training ended in numbers that are not finite")
    return key, end


def _refusal(message: Message, error: Exception) -> Message:
    """Said on this node and to the server, which counts the node out of this round."""
    reason = str(error.args[0])
    log.warning("%s", reason)
    return Message(Error(UNMET, reason), reply_to=message)
