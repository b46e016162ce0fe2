"""Models as a body and a head, and as functions of their parameters.

Every parameter of a `Net` is called `body.…` or `head.…`, whatever the architecture, so `Named("head.*")` means the
classifier everywhere. `split` makes a `Net` of any module whose last operation is one of its submodules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import cast

from torch import Tensor, nn
from torch.func import functional_call

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
    """The inverse of `split` for weights: names as your own module's `load_state_dict(…, strict=False)` wants them."""
    prefixes = {"body.": "", "head.": f"{head}."}
    return {prefixes[name[:5]] + name[5:]: value for name, value in params.items()}


class Model:
    """A network as functions of its parameters: the same module serves every client.

    Values passed in `params` under names the network doesn't have are ignored; buffers among them (BatchNorm
    statistics) are updated in place while training, so pass copies you own.
    """

    def __init__(self, net: Net) -> None:
        _refuse_counters(net)
        self.net = net
        self.parameter_names = tuple(name for name, p in net.named_parameters() if p.requires_grad)
        self.statistic_names = tuple(
            name for name, buffer in net.named_buffers() if buffer.is_floating_point()
        ) + tuple(name for name, p in net.named_parameters() if not p.requires_grad)
        known = (*self.parameter_names, *self.statistic_names)
        self._body = {name[5:]: name for name in known if name.startswith("body.")}
        self._head = {name[5:]: name for name in known if name.startswith("head.")}
        self._modes = [(module, _own_names(name, module)) for name, module in net.named_modules()]

    def init(self) -> Params:
        """The network's present values: parameters first, then statistics (buffers that are not counters)."""
        values = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        return {name: values[name].detach().clone() for name in (*self.parameter_names, *self.statistic_names)}

    def features(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Images (examples, channels, height, width) to features (examples, width)."""
        return cast(Tensor, functional_call(self.net.body, _view(params, self._body), (x,)))

    def classify(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        return cast(Tensor, functional_call(self.net.head, _view(params, self._head), (features,)))

    def __call__(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return self.classify(params, self.features(params, x))

    def train(self, names: Iterable[str]) -> None:
        """Training mode for the modules that own one of `names`, or own nothing (dropout); the rest only evaluate.

        A frozen body must not move its running statistics, so what is not trained does not see the batch.
        """
        trained = frozenset(names)
        for module, own in self._modes:
            module.training = not own or not own.isdisjoint(trained)

    def eval(self) -> None:
        self.net.eval()


def _view(params: Mapping[str, Tensor], names: Mapping[str, str]) -> Params:
    return {inner: params[outer] for inner, outer in names.items() if outer in params}


def _own_names(prefix: str, module: nn.Module) -> frozenset[str]:
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return frozenset(f"{prefix}.{name}" if prefix else name for name, _ in own)


def _refuse_counters(net: nn.Module) -> None:
    """BatchNorm with momentum=None weighs by a step counter, which must never be averaged between clients."""
    for name, module in net.named_modules():
        if (
            isinstance(module, nn.modules.batchnorm._NormBase)
            and module.track_running_stats
            and module.momentum is None
        ):
            raise InputError(
                f"The normalisation layer {name!r} has momentum=None, which counts batches and cannot be averaged "
                "between clients; give it a momentum such as 0.1."
            )
