"""Models as a body and a head, and as functions of their parameters.

Every parameter of a `Net` is called `body.…` or `head.…`, whatever the architecture, so `Named("head.*")` means the
classifier everywhere. `split` makes a `Net` of any module whose last operation is one of its submodules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedlag.errors import InputError, unknown
from fedlag.tree import Params


class Net(nn.Module):
    """body: images to features (examples, width); head: features to class scores (examples, classes)."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.body(x)))


def split(module: nn.Module, head: str) -> Net:
    """Make a `Net` of your own module: `head` is the dotted name of the submodule that computes the scores last.

    `split(torchvision_resnet, "fc")`, `split(vgg, "classifier.6")`. The module itself is not changed.
    """
    body = copy.deepcopy(module)
    names = [name for name, _ in body.named_modules() if name]
    if head not in names:
        raise unknown("head module", head, names)
    parent, _, leaf = head.rpartition(".")
    last = body.get_submodule(head)
    setattr(body.get_submodule(parent), leaf, nn.Identity())
    return Net(body, last)


def join(params: Mapping[str, Tensor], head: str) -> Params:
    """The inverse of `split` for weights: names as your own module's `load_state_dict(…, strict=False)` wants them.

    Entries that belong to neither body nor head (what an algorithm added) are left out.
    """
    prefixes = {"body.": "", "head.": f"{head}."}
    return {prefixes[name[:5]] + name[5:]: value for name, value in params.items() if name[:5] in prefixes}


class Model:
    """A network as functions of its parameters: the same module serves every client.

    `net` is copied and never changed. `params` must hold every name that `init` gives; others are ignored. The
    BatchNorm statistics among them are updated in place while training, so pass copies you own.
    """

    def __init__(self, net: Net) -> None:
        _refuse_tied(net)
        self.net = _without_counters(net)
        kept = self.net.state_dict().keys()  # leaves out buffers that a module makes anew, such as an attention mask
        named = [*self.net.named_parameters(), *self.net.named_buffers()]
        self.parameter_names = tuple(name for name, value in named if value.requires_grad)
        self.statistic_names = tuple(
            name for name, value in named if name in kept and value.is_floating_point() and not value.requires_grad
        )
        known = (*self.parameter_names, *self.statistic_names)
        self._body = _places(self.net, "body", known)
        self._head = _places(self.net, "head", known)
        self._modes = [(module, self._moved_by(name, module)) for name, module in self.net.named_modules()]

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.net.parameters()).device

    def another(self) -> Model:
        """The same for another thread: modules of its own, because what they are doing is noted on them.

        Values are shared; nobody changes them.
        """
        values = [*self.net.parameters(), *self.net.buffers()]
        return copy.deepcopy(self, {id(value): value for value in values})

    def init(self) -> Params:
        """The network's present values: parameters first, then statistics (buffers that are not counters)."""
        values = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        return {name: values[name].detach().clone() for name in (*self.parameter_names, *self.statistic_names)}

    def features(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Images (examples, channels, height, width) to features (examples, width)."""
        return _call(self.net.body, self._body, params, x)

    def classify(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        return _call(self.net.head, self._head, params, features)

    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return self.classify(params, self.features(params, x))

    def train(self, names: Iterable[str]) -> None:
        """Training mode for what moves: `names` are parameters and statistics. The frozen rest only evaluates.

        A module with statistics trains when those are named: what is not named must not see the batch. Modules that
        keep nothing, such as dropout, always train.
        """
        trained = frozenset(names)
        for module, own in self._modes:
            _switch(module, own is None or not own.isdisjoint(trained))

    def eval(self) -> None:
        for module, _ in self._modes:
            _switch(module, False)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode for a while, and then the modes of before."""
        modes = [(module, module.training) for module, _ in self._modes]
        self.eval()
        try:
            yield
        finally:
            for module, training in modes:
                _switch(module, training)

    def _moved_by(self, prefix: str, module: nn.Module) -> frozenset[str] | None:
        """The names of which one must be trained for the module to train; None when it always does."""
        parameters = dict(module.named_parameters(prefix, recurse=False))
        buffers = dict(module.named_buffers(prefix, recurse=False))
        trainable = parameters.keys() & set(self.parameter_names)
        statistics = buffers.keys() & set(self.statistic_names)
        if parameters and not trainable:
            return frozenset()
        return frozenset(statistics or trainable) if parameters or statistics else None


def _switch(module: nn.Module, training: bool) -> None:
    if module.training != training:  # setting an attribute of a module is slow, and this happens before every step
        module.training = training


Place = tuple[dict[str, Any], str, str]  # where a module holds a tensor, under which key; its name in params


def _places(net: Net, part: str, names: Iterable[str]) -> tuple[Place, ...]:
    """Where the modules of `part` hold the named tensors; a tensor that two modules share is held twice."""
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    name_of = {id(held[name]): name for name in names}
    return tuple(
        (holder, key, name_of[id(value)])
        for module in net.get_submodule(part).modules()
        for holder in (module._parameters, module._buffers)
        for key, value in holder.items()
        if id(value) in name_of
    )


def _call(module: nn.Module, places: Sequence[Place], params: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The module with other tensors in its places: `torch.func.functional_call` without looking names up each time."""
    own = [holder[key] for holder, key, _ in places]
    try:
        for holder, key, name in places:
            holder[key] = params[name]
        return cast(Tensor, module(x))
    finally:
        for (holder, key, _), value in zip(places, own, strict=True):
            holder[key] = value


def _refuse_tied(net: Net) -> None:
    shared = {id(p) for p in net.body.parameters()} & {id(p) for p in net.head.parameters()}
    names = [name for name, p in net.named_parameters() if id(p) in shared]
    if names:
        raise InputError(
            f"The body and the head share {', '.join(names)}, and one of them may become personal without the other; "
            "give each its own parameters."
        )


def _without_counters(net: Net) -> Net:
    """A copy whose BatchNorm layers count no batches.

    Only momentum=None needs the count, which must never be averaged between clients; and `torch.func` does not allow
    a module to advance it.
    """
    net = copy.deepcopy(net)
    for name, module in net.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            if module.momentum is None:
                raise InputError(
                    f"The normalisation layer {name!r} has momentum=None, which counts batches and cannot be averaged "
                    "between clients; give it a momentum such as 0.1."
                )
            module.num_batches_tracked = None
    return net
