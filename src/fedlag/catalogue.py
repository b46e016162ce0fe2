"""What there is to choose from, as plain rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedlag.algorithms import REGISTRY
from fedlag.config import class_of
from fedlag.data.sources import SOURCES
from fedlag.experiment import flat
from fedlag.nets import NETS

Row = dict[str, Any]


def methods() -> list[Row]:
    """Every method: its paper, and what stays personal."""
    rows = []
    for name, factory in REGISTRY.items():
        rules = " | ".join(str(rule) for rule in flat(factory().personal))
        summary = (class_of(factory).__doc__ or "").strip().splitlines()[0]
        rows.append({"method": name, "what": summary, "personal": rules or "nothing"})
    return rows


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
