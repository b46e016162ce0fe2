"""What many clients have at hand, as one: the same methods, asked once for all of them by `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from fedlag import tree
from fedlag.flow import Local
from fedlag.tree import Params, Tree


class NotTogetherError(Exception):
    """These clients must train one by one; says why."""


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a form."""

    number: int
    shape: torch.Size
    dtype: torch.dtype


def taken_apart(values: Tree, tensors: list[Tensor]) -> Tree:
    """The form of a tree: itself with a slot for every tensor, which is appended to `tensors`."""
    if isinstance(values, dict):
        return {key: taken_apart(value, tensors) for key, value in values.items()}
    if isinstance(values, tuple):
        return tree.like(values, [taken_apart(value, tensors) for value in values])
    if not isinstance(values, Tensor):
        return values
    tensors.append(values)
    return Slot(len(tensors) - 1, values.shape, values.dtype)


def put_together(form: Tree, tensors: Sequence[Tensor]) -> Tree:
    """The tree of that form with these tensors."""
    if isinstance(form, dict):
        return {key: put_together(value, tensors) for key, value in form.items()}
    if isinstance(form, tuple):
        return tree.like(form, [put_together(value, tensors) for value in form])
    return tensors[form.number] if isinstance(form, Slot) else form


class Stacked(NamedTuple):
    """Trees of one form, as one."""

    form: Tree
    tensors: list[Tensor]  # (clients, ...)


def stacked(trees: Sequence[Tree]) -> Stacked | None:
    """None where forms differ."""
    tensors: list[list[Tensor]] = [[] for _ in trees]
    forms = [taken_apart(one, into) for one, into in zip(trees, tensors, strict=True)]
    if any(form != forms[0] for form in forms):
        return None
    return Stacked(forms[0], [_stack(values) for values in zip(*tensors, strict=True)])


def _stack(values: Sequence[Tensor]) -> Tensor:
    """(clients, ...): without copying, where everybody has the very same tensor."""
    first = values[0]
    return first.expand(len(values), *first.shape) if all(x is first for x in values) else torch.stack(list(values))


def alike(trees: Sequence[Tree]) -> list[list[int]]:
    """The places of trees that have the same form, group by group."""
    groups: list[tuple[Tree, list[int]]] = []
    for place, one in enumerate(trees):
        form = taken_apart(one, [])
        known = next((places for other, places in groups if other == form), None)
        if known is None:
            groups.append((form, [place]))
        else:
            known.append(place)
    return [places for _, places in groups]


class Own(NamedTuple):
    """What may be a client's own of all it looks at."""

    start: Params
    notes: Tree
    round: int
    params: Params
    memory: Tree
    birth: Params
    extra: Tree


def own(local: Local) -> Own:
    client, letter = local.client, local.letter
    return Own(local.start, local.notes, client.round, client.params, client.memory, letter.birth, letter.extra)


class Locals:
    """What clients look at, as what one of them looks at. `tensors` are the clients' own, (clients, ...)."""

    def __init__(self, locals: Sequence[Local]) -> None:
        self._like = locals[0]
        self.tensors: list[Tensor] = []
        forms: list[Any] = []
        for what, values in zip(Own._fields, zip(*map(own, locals), strict=True), strict=True):
            one = stacked(values)
            forms.append(Apart(f"its {what}") if one is None else _moved(one, self.tensors))
        self._form = Own(*forms)

    def local(self, tensors: Sequence[Tensor], **present: Any) -> Local:
        """One client's, with its tensors; and what is the same for all at present."""
        mine: Own = put_together(self._form, tensors)
        client = self._like.client._replace(round=mine.round, params=mine.params, memory=mine.memory)
        letter = self._like.letter._replace(birth=mine.birth, extra=mine.extra)
        return self._like._replace(
            start=mine.start, notes=mine.notes, client=client, letter=letter, work=WORK, **present
        )


def _moved(one: Stacked, tensors: list[Tensor]) -> Tree:
    """The form whose slots count on from `tensors`, which its own are appended to."""
    return taken_apart(put_together(one.form, one.tensors), tensors)


def for_all(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function for all clients at once: `arguments` and results have a first dimension more, (clients, ...)."""
    try:
        return torch.func.vmap(function)(*arguments)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise NotTogetherError(f"it cannot be asked for many clients at once: {reason}") from error


class Apart:
    """In the place of what each client has for itself: whoever looks at it cannot be asked for many clients at once."""

    def __init__(self, what: str) -> None:
        object.__setattr__(self, "what", what)

    def __getattribute__(self, name: str) -> Any:
        return Apart if name == "__class__" else _refuse(self)

    def __eq__(self, other: object) -> NoReturn:
        _refuse(self)

    __hash__ = None  # type: ignore[assignment]


def _refuse(apart: Apart, *given: Any) -> NoReturn:
    raise NotTogetherError(f"it looks at {object.__getattribute__(apart, 'what')}, which each client has for itself")


for name in ("bool", "len", "iter", "getitem", "contains", "lt", "le", "gt", "ge", "ne", "int", "index", "add", "sub"):
    setattr(Apart, f"__{name}__", _refuse)


WORK: Any = Apart("its examples")
