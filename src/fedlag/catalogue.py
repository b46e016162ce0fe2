"""What there is to choose from, as plain rows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from fedlag.algorithms import REGISTRY
from fedlag.config import class_of
from fedlag.data.sources import SOURCES
from fedlag.experiment import flat
from fedlag.nets import NETS
from fedlag.personal import Rule

Row = dict[str, Any]


def methods() -> list[Row]:
    """Every method: its paper or what makes it differ from FedAvg, and what stays personal."""
    return [
        {"method": name, "what": _what(factory), "personal": _personal(factory().personal)}
        for name, factory in REGISTRY.items()
    ]


def _what(factory: Any) -> str:
    """What the class says of itself; for a class with other settings, its name and those."""
    described = class_of(factory)
    if not isinstance(factory, partial):
        return " ".join((described.__doc__ or "").split("\n\n")[0].split())
    changes = [f"{name} = {value}" for name, value in factory.keywords.items() if name != "personal"]
    return ", ".join([described.__name__, *changes])


def _personal(rule: Rule) -> str:
    return " | ".join(map(str, flat(rule))) or "nothing"


def models() -> list[Row]:
    """Every architecture with its defaults."""
    return [
        {"model": name, "norm": net.norm, "hidden": list(net.hidden), "smallest image": net.smallest}
        for name, net in NETS.items()
    ]


def data() -> list[Row]:
    """Every data set known by name."""
    return [
        {
            "data": name,
            "what": source.description,
            "images": source.size,
            "shape": "x".join(map(str, source.shape)),
            "classes": source.classes,
        }
        for name, source in SOURCES.items()
    ]


def runs(folder: Path) -> list[Row]:
    """Every run below a folder, newest last."""
    rows = []
    for path in sorted(folder.rglob("manifest.json"), key=lambda path: path.stat().st_mtime):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        rows.append(
            {
                "run": str(path.parent),
                "method": manifest.get("method"),
                "seed": manifest.get("seed"),
                "started": manifest.get("started"),
                "finished": manifest.get("finished") or "no: `fedlag resume` continues it",
            }
        )
    return rows
