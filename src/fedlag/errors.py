"""What fedlag raises when something given to it cannot be used."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Something was given that cannot be used; the message names it, what is allowed and what to do."""


class Lost(LookupError):
    """A client no longer has what it kept; it must be met anew."""


def unknown(kind: str, given: str, known: Iterable[str]) -> InputError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = get_close_matches(given, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"Unknown {kind} {given!r}.{hint} Known: {', '.join(names)}.")
