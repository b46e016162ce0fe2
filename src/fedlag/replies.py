"""Which replies can be used, and all of them as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlag import tree
from fedlag.errors import Lost
from fedlag.flow import Message, Replies, Reply, Scores
from fedlag.memory import room
from fedlag.round import Task, told
from fedlag.tree import Params, Tree

COUNTABLE = 2**53  # float64 counts exactly up to here


class Gathered(NamedTuple):
    replies: Replies | None  # None when nobody's reply could be used
    dropped: dict[int, str]  # client -> why its reply was not used
    scores: dict[int, Scores]  # of each participant's model right after training
    sent: dict[int, Counter[str]]  # client -> bytes of its reply by parameter name, see `weigh`
    lost: frozenset[int] = frozenset()  # clients that no longer have what they kept


def weigh(params: Params, extra: Tree = None) -> Counter[str]:
    """Bytes of tensors that travel, by parameter name; what the algorithm adds goes by the name "extra"."""
    return Counter({**{name: tree.nbytes(value) for name, value in params.items()}, "extra": tree.nbytes(extra)})


def gather(
    task: Task, message: Message, params: Params, cohort: Sequence[int], answers: Iterable[tuple[int, Any]]
) -> Gathered:
    """Stack the replies of a round in the order of the cohort, leaving out every one that cannot be used.

    `answers` gives (client, Reply) in any order, or (client, exception) for a client that failed. Updates are put in
    their place as they come, so that they never lie in memory twice.
    """
    place = {client: row for row, client in enumerate(cohort)}
    updates = Rows(len(cohort), tree.select(params, told(task, message)))
    trained = Rows(len(cohort), tree.select(params, message.watched))
    taken: dict[int, Reply] = {}
    dropped: dict[int, str] = {}
    lost = set[int]()
    for client, answer in answers:
        if client not in place or client in taken or client in dropped:
            continue  # a second answer, or one nobody asked for, changes nothing
        if isinstance(answer, Lost):
            lost.add(client)
        problem = _problem(task, message, params, answer)
        if problem:
            dropped[client] = problem
        else:
            row = place[client]
            taken[client] = answer._replace(
                update=updates.put(row, answer.update), trained=trained.put(row, answer.trained)
            )
    forms = {client: _form((taken[client].witness, taken[client].extra)) for client in cohort if client in taken}
    usual = Counter(forms.values()).most_common(1)
    order = [client for client, form in forms.items() if form == usual[0][0]]
    odd = forms.keys() - order
    dropped |= dict.fromkeys(odd, "what it adds to its update has another form than what most clients add")
    dropped |= {client: "it did not answer" for client in cohort if client not in forms and client not in dropped}
    dropped = {client: dropped[client] for client in cohort if client in dropped}  # whoever came first
    scores = {client: taken[client].scores for client in order}
    sent = {client: _weigh(taken[client]) for client in order}
    if not order:
        return Gathered(None, dropped, scores, sent, frozenset(lost))
    rows = [place[client] for client in order]
    replies = Replies(
        round=message.round,
        ids=tuple(order),
        update=updates.only(rows),
        trained=trained.only(rows),
        witness=tree.stack([taken[client].witness for client in order]),
        extra=tree.stack([taken[client].extra for client in order]),
        examples=torch.tensor([taken[client].examples for client in order]),
        steps=torch.tensor([taken[client].steps for client in order]),
    )
    return Gathered(replies, dropped, scores, sent, frozenset(lost))


class Rows:
    """Room for tensors of many clients, (clients, *shape) by name."""

    def __init__(self, clients: int, like: Params) -> None:
        self._held = {name: room(value, clients) for name, value in like.items()}

    @torch.no_grad()
    def put(self, row: int, values: Params) -> Params:
        """Copy one client's tensors to its row; returns them as they lie there."""
        return {name: held[row].copy_(values[name]) for name, held in self._held.items()}

    def only(self, rows: Sequence[int]) -> Params:
        """These rows, which must ascend, and no others; they close ranks within the room there is."""
        for place, row in enumerate(rows):
            if place < row:
                for held in self._held.values():
                    held[place] = held[row]
        return {name: held[: len(rows)] for name, held in self._held.items()}


def _weigh(reply: Reply) -> Counter[str]:
    return weigh(reply.update, reply.extra) + weigh(reply.trained) + weigh(reply.witness)


def _problem(task: Task, message: Message, params: Params, answer: Any) -> str:
    """Why an answer cannot be used; empty if it can."""
    if isinstance(answer, Exception):
        return f"it failed: {answer}"
    if not isinstance(answer, Reply):
        return f"its answer is a {type(answer).__name__}, not a reply"
    names_told = told(task, message)
    for what, values, names in (("update", answer.update, names_told), ("trained", answer.trained, message.watched)):
        if not isinstance(values, dict):
            return f"its {what} is a {type(values).__name__}, not tensors by name"
        if values.keys() != names:
            odd = sorted(map(str, values.keys() ^ names))
            return f"its {what} has missing or unexpected entries: {', '.join(odd[:3])}"
        for name, value in values.items():
            if _form(value) != _form(params[name]):
                return f"its {what} of {name} is {_form(value)}, not {_form(params[name])}"
    for what, number, least in (("examples", answer.examples, 1), ("steps", answer.steps, 0)):
        if not (isinstance(number, int) and least <= number < COUNTABLE):
            return f"it claims {number} {what}"
    if not tree.finite((answer.update, answer.trained, answer.witness, answer.extra)):
        return "its reply is not finite"
    return ""


def _form(value: Any) -> Any:
    """What two trees that can be stacked have in common: keys, and kinds and shapes of entries."""
    if isinstance(value, dict):
        return dict, frozenset((key, _form(entry)) for key, entry in value.items())
    if isinstance(value, tuple):
        return type(value), tuple(map(_form, value))
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
