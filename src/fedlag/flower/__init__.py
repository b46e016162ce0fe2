"""fedlag on Flower: clients on other machines, or many simulated ones.

Two ways in. Whoever starts with fedlag writes an app with `fedlag flower new` and never needs this package by name.
Whoever has a Flower app puts `FedLAG` in the place of `FedAvg` and `keep_personal` on the client.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

if find_spec("flwr") is None:
    raise ImportError('fedlag on Flower needs Flower: pip install "fedlag[flower]".')

_HOME_OF = {"Flower": "federation", "FedLAG": "strategy", "keep_personal": "mod"}

__all__ = ["FedLAG", "Flower", "keep_personal"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedlag.flower' has no attribute {name!r}")
    return getattr(import_module(f"fedlag.flower.{_HOME_OF[name]}"), name)
