"""Arithmetic on dicts of tensors, and on trees of them.

`Params` maps names to tensors. A `Tree` nests dicts and tuples around tensors and plain values; a parameter's
name may appear as a key at any depth, which is how `without` finds everything that belongs to it.
Nothing here changes its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

Params = dict[str, Tensor]
Tree = Any


def map(function: Callable[..., Tensor], *trees: Mapping[str, Tensor]) -> Params:
    """Apply `function` to the tensors of the same name; the first tree says which names."""
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], alpha: float = 1.0) -> Params:
    """a + alpha * b, over the names of `a`."""
    return map(lambda x, y: torch.add(x, y, alpha=alpha), a, b)


def sub(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """a - b, over the names of `a`."""
    return map(torch.sub, a, b)


def scale(a: Mapping[str, Tensor], factor: float | Tensor) -> Params:
    return map(lambda x: x * factor, a)


def zeros_like(a: Mapping[str, Tensor]) -> Params:
    return map(torch.zeros_like, a)


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Inner product over the names of `a`, as a scalar tensor."""
    products = [(x * b[name]).sum() for name, x in a.items()]
    return torch.stack(products).sum() if products else torch.zeros(())


def sq_norm(a: Mapping[str, Tensor]) -> Tensor:
    return dot(a, a)


def mean(stacked: Mapping[str, Tensor], weights: Tensor) -> Params:
    """Weighted sum over the first dimension (clients) of every tensor; `weights` (clients,) sum to one."""
    return map(lambda x: torch.tensordot(weights.to(x), x, dims=1), stacked)


def where(condition: Tensor, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    return map(lambda x, y: torch.where(condition, x, y), a, b)


def select(a: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The entries of `a` whose name is in `names`, in the order of `a`."""
    return {name: value for name, value in a.items() if name in names}


def under(names: Iterable[str], pattern: str) -> frozenset[str]:
    """The names that match a shell pattern such as `head.*`; several patterns are separated by spaces."""
    return frozenset(name for name in names if matches(name, pattern))


def matches(name: str, pattern: str) -> bool:
    return any(fnmatchcase(name, one) for one in pattern.split())


def without(tree: Tree, names: Collection[str]) -> Tree:
    """The tree without any entry keyed by one of `names`, at any depth."""
    if not names:
        return tree
    if isinstance(tree, dict):
        return {key: without(value, names) for key, value in tree.items() if key not in names}
    if isinstance(tree, tuple):
        return like(tree, [without(value, names) for value in tree])
    return tree


def renew(tree: Tree, fresh: Tree, names: Collection[str]) -> Tree:
    """The tree with every entry keyed by one of `names` taken from the same place of `fresh`, where `fresh` has it."""
    if isinstance(tree, tuple) and isinstance(fresh, tuple) and len(tree) == len(fresh):
        return like(tree, [renew(value, new, names) for value, new in zip(tree, fresh, strict=True)])
    if not names or not isinstance(tree, dict) or not isinstance(fresh, dict):
        return tree
    renewed = {key: renew(value, fresh.get(key), names) for key, value in tree.items() if key not in names}
    return renewed | {key: value for key, value in fresh.items() if key in names}


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of the same form as one, whose tensors and numbers have a first dimension more."""
    one = trees[0]
    if isinstance(one, dict):
        if any(tree.keys() != one.keys() for tree in trees):
            raise KeyError("trees of different forms cannot be stacked")
        return {key: stack([tree[key] for tree in trees]) for key in one}
    if isinstance(one, tuple):
        return like(one, [stack(values) for values in zip(*trees, strict=True)])
    return torch.stack(list(trees)) if isinstance(one, Tensor) else torch.tensor(trees)


def first(tree: Tree, count: int) -> Tree:
    """The first entries of every tensor in the tree."""
    if isinstance(tree, dict):
        return {key: first(value, count) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return like(tree, [first(value, count) for value in tree])
    return tree[:count] if isinstance(tree, Tensor) else tree


def own(tree: Tree) -> Tree:
    """The tree with a copy of every tensor that is a view of a larger one, which it would keep from being freed."""
    if isinstance(tree, dict):
        return {key: own(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return like(tree, [own(value) for value in tree])
    return tree.clone() if isinstance(tree, Tensor) and tree.untyped_storage().nbytes() > tree.nbytes else tree


def leaves(tree: Tree) -> Iterable[Any]:
    """Everything in the tree that is neither a dict nor a tuple."""
    if isinstance(tree, dict | tuple):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(value)
    else:
        yield tree


def keys(tree: Tree) -> Iterable[str]:
    """Every key at any depth."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from keys(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from keys(value)


def finite(tree: Tree) -> bool:
    """Whether every number in the tree is finite."""
    return all(_finite(torch.as_tensor(x)) for x in leaves(tree) if isinstance(x, Tensor | float))


def _finite(x: Tensor) -> bool:
    # A finite sum has finite terms, and is several times faster; but finite terms may sum to infinity.
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def stands_for_many(x: Tensor) -> bool:
    """Whether x is one tensor to the code that sees it and many to `torch.func`, which has not every operation."""
    return is_functorch_wrapped_tensor(x)


def nbytes(tree: Tree) -> int:
    return sum(x.numel() * x.element_size() for x in leaves(tree) if isinstance(x, Tensor))


def like(example: tuple[Any, ...], values: list[Any]) -> tuple[Any, ...]:
    """A tuple of the same kind with other values."""
    return type(example)(*values) if hasattr(example, "_fields") else tuple(values)
