"""A made-up second device: its tensors refuse to meet those of this processor, as a GPU's do.

They are ordinary tensors with a mark. While `pretending`, every function of PyTorch is watched: what is made of marked
tensors is marked, devices are told accordingly, and a call that a GPU would refuse is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedlag import tree

DEVICE = torch.device("cuda", 0)


class Elsewhere(Tensor):
    """Marked."""


def there(value: Tensor) -> Tensor:
    return value.detach().as_subclass(Elsewhere)


def here(value: Any) -> Any:
    """A tree without marks."""
    return tree.map(lambda one: one.as_subclass(Tensor) if isinstance(one, Tensor) else one, value)


TELL = {
    Tensor.device.__get__: lambda x: DEVICE,
    Tensor.is_cpu.__get__: lambda x: False,
    torch._has_compatible_shallow_copy_type: lambda a, b: place(a) == place(b),
}
REFUSED = {Tensor.numpy, Tensor.__array__}
JOINS = {torch.stack, torch.cat}  # which take no scalars from another device either


class pretending(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        marked = [x for x in tensors((args, kwargs)) if isinstance(x, Elsewhere)]
        if func in TELL and marked:
            return TELL[func](*args)
        if func in REFUSED and marked and not kwargs.get("force"):
            raise TypeError(f"{func.__name__}: can't convert a tensor on {DEVICE}; use .cpu() first.")
        target = self._target(func, args, kwargs)
        if target is None:
            self._meet(func, args, kwargs, marked)
            target = DEVICE if marked else torch.device("cpu")
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        if func is Tensor.to:
            args = tuple(torch.device("cpu") if isinstance(x, torch.device | str) else x for x in args)
        if func is Tensor.__deepcopy__ and marked:
            copy = there(args[0].detach().clone())
            return nn.Parameter(copy, args[0].requires_grad) if isinstance(args[0], nn.Parameter) else copy
        with torch._C.DisableTorchFunctionSubclass():
            done = func(*args, **kwargs)
        return mark(done, target.type == DEVICE.type)

    def _target(self, func: Any, args: Any, kwargs: Any) -> torch.device | None:
        """The device that is named by the call."""
        if func is Tensor.cpu:
            return torch.device("cpu")
        if func in (Tensor.copy_, Tensor.__setitem__):
            return place(args[0])
        if func in (Tensor.to, Tensor.type_as):
            named = [place(x) if isinstance(x, Tensor) else x for x in (*args[1:], *kwargs.values())]
            return next((torch.device(x) for x in named if isinstance(x, torch.device | str)), place(args[0]))
        named = kwargs.get("device")
        return None if named is None else torch.device(named)

    def _meet(self, func: Any, args: Any, kwargs: Any, marked: list[Tensor]) -> None:
        if func is Tensor.__deepcopy__ or (func is Tensor.__getitem__ and isinstance(args[0], Elsewhere)):
            return  # an index may come from this processor
        plain = [x for x in tensors((args, kwargs)) if not isinstance(x, Elsewhere) and (x.ndim or func in JOINS)]
        if marked and plain:
            raise RuntimeError(f"{getattr(func, '__name__', func)}: tensors on {DEVICE} and on the processor meet.")


def place(x: Tensor) -> torch.device:
    return DEVICE if isinstance(x, Elsewhere) else torch.device("cpu")


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors(one)


def mark(value: Any, elsewhere: bool) -> Any:
    if isinstance(value, Tensor):
        if isinstance(value, Elsewhere) == elsewhere:
            return value
        return value.as_subclass(Elsewhere if elsewhere else Tensor)
    if isinstance(value, list | tuple):
        return type(value)([mark(one, elsewhere) for one in value])
    return value
