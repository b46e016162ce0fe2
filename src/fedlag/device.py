"""Where tensors live: on this processor or on a GPU."""

from __future__ import annotations

import re

import torch

from fedlag import check
from fedlag.errors import InputError


def refuse_unknown(name: str) -> None:
    known = isinstance(name, str) and re.fullmatch(r"cpu|cuda(:\d+)?", name)
    check.require(bool(known), "device", name, "'cpu', 'cuda' or one of several GPUs, such as 'cuda:1'")


def present(name: str) -> torch.device:
    """The device of this name, if the machine has it."""
    device = torch.device(name)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= found:
        raise InputError(
            f"device = {name!r}, but PyTorch {torch.__version__} finds {found or 'no'} "
            f"GPU{'' if found == 1 else 's'} here; use device = 'cpu', or a build of PyTorch for your GPU."
        )
    return device
