"""What the strategy tells a node beside the shared weights, and how weights become Flower's arrays and back.

It travels within the app's own ConfigRecord, because Flower's privacy mods accept no second one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedlag.errors import InputError
from fedlag.tree import Params

CONFIG, BIRTH = "fedlag", "fedlag-birth"  # entries of the app's ConfigRecord on the way to the node
RECEIPT = "fedlag"  # the ConfigRecord on the way back
UPDATE, TRAINED = "fedlag-update", "fedlag-trained"  # ArrayRecords of watched layers on the way back


class Instructions(NamedTuple):
    run: str
    round: int
    names: tuple[str, ...]  # everything in the model, in its order
    personal: dict[str, int]  # name that stays home -> first round whose copy is valid
    watched: tuple[str, ...]  # personal names whose movement is still reported
    keep: tuple[str, ...]  # names to keep a copy of after training
    birth: Params  # the server's copy of personal names, for a node that has no valid one of its own


def write(told: Instructions, config: Mapping[str, object]) -> ConfigRecord:
    """The app's configuration with the instructions added."""
    entries = told._asdict()
    birth = entries.pop("birth")
    added = {CONFIG: json.dumps(entries), BIRTH: save(birth) if birth else b""}
    return ConfigRecord({**config, **added})  # type: ignore[dict-item]


def read(config: ConfigRecord) -> tuple[Instructions, ConfigRecord]:
    """The instructions, and the app's configuration without them."""
    try:
        entries, birth = json.loads(str(config[CONFIG])), config[BIRTH]
        told = Instructions(
            run=str(entries["run"]),
            round=int(entries["round"]),
            names=tuple(entries["names"]),
            personal=dict(entries["personal"]),
            watched=tuple(entries["watched"]),
            keep=tuple(entries["keep"]),
            birth=load(birth) if isinstance(birth, bytes) and birth else {},
        )
    except (LookupError, ValueError, TypeError, SafetensorError) as error:
        raise InputError(
            f"What the server sent is not in order ({type(error).__name__}: {error}); "
            "use the same version of fedlag on the server and on all nodes."
        ) from error
    return told, ConfigRecord({key: value for key, value in config.items() if key not in (CONFIG, BIRTH)})


def to_arrays(params: Params) -> ArrayRecord:
    return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in params.items()})


def to_tensors(arrays: ArrayRecord) -> Params:
    """In memory of PyTorch's own, because sums may depend on how memory is aligned."""
    return {name: torch.tensor(np.asarray(array.numpy())) for name, array in arrays.items()}


def odd(given: Params, sent: Params) -> str:
    """What of the names and forms of weights is other than was sent; empty if nothing is."""
    if given.keys() != sent.keys():
        return "only on one side: " + ", ".join(sorted(given.keys() ^ sent.keys()))
    for name, value in given.items():
        if value.shape != sent[name].shape or value.dtype != sent[name].dtype:
            form, usual = (f"{one.dtype} {tuple(one.shape)}" for one in (value, sent[name]))
            return f"{name} is {form}, not {usual}"
    return ""
