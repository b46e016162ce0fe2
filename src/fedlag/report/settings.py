"""What runs were asked to do, and with what they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedlag.report.evidence import Evidence, Row
from fedlag.results import Run, title

PLACES = ("data.root", "data.file")  # where things lie on somebody's disk


def common(evidence: Evidence) -> Row:
    """Dotted settings that all runs share."""
    first, *others = [_settings(run) for run in evidence.runs]
    return {key: value for key, value in first.items() if all(other.get(key, ...) == value for other in others)}


def own(evidence: Evidence) -> dict[str, Row]:
    """What distinguishes each method; what its seeds don't agree on (the seeds themselves) is left out."""
    shared = common(evidence)
    made = {}
    for method in evidence.methods:
        first, *others = [_settings(run) for run in evidence.of(method)]
        made[title(method)] = {
            key: value
            for key, value in first.items()
            if key not in shared and all(other.get(key, ...) == value for other in others)
        }
    return made


def runs(evidence: Evidence) -> list[Row]:
    """One row for each run: which experiment it was, on which partition, and when."""
    return [
        {
            "run": run.folder.name,
            "seed": run.seed,
            "experiment": run.manifest.get("hash", ""),
            "partition": run.manifest.get("partition", "")[:12],
            "rounds": run.manifest.get("rounds", "unfinished"),
            "started": run.manifest.get("started", ""),
            "seconds": run.manifest.get("seconds", ""),
        }
        for run in evidence.runs
    ]


def versions(evidence: Evidence) -> Row:
    """With what the runs were made; several values where they differ."""
    found: dict[str, list[str]] = {}
    for run in evidence.runs:
        manifest = run.manifest
        made = {
            **manifest.get("versions", {}),
            "Python": manifest.get("python"),
            "federation": manifest.get("federation", {}).get("name"),
            **manifest.get("machine", {}),
        }
        for name, value in made.items():
            if value and str(value) not in found.setdefault(name, []):
                found[name].append(str(value))
    return {name: ", ".join(values) for name, values in found.items() if values}


def _settings(run: Run) -> Row:
    return {key: value for key, value in _flat(run.experiment).items() if key not in PLACES}


def _flat(table: Mapping[str, Any], prefix: str = "") -> Row:
    """Nested settings with dotted keys; a list of tables counts from 0 where it has more than one."""
    made: Row = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            made |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, Sequence) and value and all(isinstance(one, Mapping) for one in value):
            for place, one in enumerate(value):
                made |= _flat(one, f"{prefix}{key}." + (f"{place}." if len(value) > 1 else ""))
        else:
            made[f"{prefix}{key}"] = value
    return made
