"""What a run records: four tables in long form, kept as Parquet files in its folder.

`round` counts finished rounds everywhere: under 1 stand what the first round cost, what was measured in it, what became
personal by it, and how good the models are after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedlag import layers as layering
from fedlag.errors import InputError
from fedlag.files import write_atomically
from fedlag.flow import Scores
from fedlag.layers import Anatomy, Layer
from fedlag.replies import weigh
from fedlag.round import Step
from fedlag.run import Round

SCHEMAS = {
    "rounds": pa.schema(
        [
            ("round", pa.int32()),
            ("client", pa.int32()),
            ("part", pa.string()),  # "validation", "test"
            # "personal": every client's own model after the broadcast; "global": the server's copy of everything;
            # "trained": participants right after training, before averaging. After the last round also
            # "personal-trained" and "global-trained": what one more local training makes of them
            ("stage", pa.string()),
            ("metric", pa.string()),  # "accuracy", "loss", "examples"
            ("value", pa.float64()),
        ]
    ),
    "layers": pa.schema(
        [
            ("round", pa.int32()),
            ("layer", pa.string()),
            ("conflicts", pa.int64()),  # this and the following are null where nothing was measured
            ("pairs", pa.int64()),
            ("mean_cosine", pa.float64()),
            ("norm", pa.float64()),
            ("improvement", pa.float64()),
            ("personal", pa.bool_()),  # in part at least; null where it isn't known what belongs to the layer
        ]
    ),
    "bytes": pa.schema(
        [
            ("round", pa.int32()),
            ("direction", pa.string()),  # "down": from the server; "up": to it
            ("client", pa.int32()),  # for "up" only those whose reply was used
            ("layer", pa.string()),  # a parameter's name up to its last dot; "extra" is what the algorithm adds
            ("bytes", pa.int64()),  # of tensors
        ]
    ),
    "dropped": pa.schema([("round", pa.int32()), ("client", pa.int32()), ("reason", pa.string())]),
}


class Tables:
    """The tables of a run as it grows."""

    def __init__(self, known: Mapping[str, pa.Table] | None = None) -> None:
        self._columns = {name: schema.empty_table() for name, schema in SCHEMAS.items()} | dict(known or {})
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in SCHEMAS}

    @classmethod
    def read(cls, folder: Path, before: int) -> Tables:
        """The tables in a run's folder, without what was recorded after round `before`: those rounds come again.

        Before the first round there is nothing to keep, and there may be no files, or not all of them.
        """
        if before == 0:
            return cls()
        return cls({name: table.filter(pc.field("round") <= before) for name, table in load(folder).items()})

    def write(self, folder: Path) -> None:
        """Replace the files in the run's folder, one after the other; none is ever half written."""
        for name in SCHEMAS:
            write_atomically(folder / _file(name), partial(pq.write_table, self.table(name)))

    def table(self, name: str) -> pa.Table:
        """One of "rounds", "layers", "bytes" and "dropped", up to now."""
        schema, rows = SCHEMAS[name], self._rows[name]
        if rows:
            arrays = [
                pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            self._columns[name] = pa.concat_tables([self._columns[name], pa.table(arrays, schema=schema)])
            self._rows[name] = []
        return self._columns[name]

    def add_scores(self, round: int, stage: str, scores: Mapping[int, Scores]) -> None:
        """How well models do, as `run.evaluate` gives it; `stage` says which models."""
        self._rows["rounds"] += [
            (round, client, part, stage, metric, float(value))
            for client, parts in scores.items()
            for part, score in parts.items()
            for metric, value in score._asdict().items()
        ]

    def add_layers(self, round: int, step: Step | None, layers: Iterable[Layer]) -> None:
        """What a rule measured, and which layers are personal from now on; nothing where there was no step.

        layers: as `candidates` gives them.
        """
        if step is None:
            return
        known = {layer.name: layer for layer in layers}
        for name in known | step.conflicts:
            conflict, layer = step.conflicts.get(name), known.get(name)
            measured = (
                (conflict.count, conflict.pairs, conflict.mean_cosine, conflict.norm, conflict.improvement)
                if conflict
                else (None,) * 5
            )
            personal = None if layer is None else not step.personal.isdisjoint(layer.names)
            self._rows["layers"].append((round, name, *measured, personal))

    def add_bytes(self, done: Round) -> None:
        """What the training of a round sent both ways: tensors, not the few numbers and names beside them.

        Evaluating a model that clients would not otherwise be sent is not counted.
        """
        everybody = weigh(done.message.shared, done.message.extra)
        down = {client: everybody + weigh(letter.birth, letter.extra) for client, letter in done.letters.items()}
        self._rows["bytes"] += [
            (done.server.round, direction, client, layer, size)
            for direction, sent in (("down", down), ("up", done.sent))
            for client, names in sent.items()
            for layer, size in _by_layer(names).items()
        ]

    def add_dropped(self, round: int, dropped: Mapping[int, str]) -> None:
        """Participants whose reply was not used, and why."""
        self._rows["dropped"] += [(round, client, _text(reason)) for client, reason in dropped.items()]


def candidates(anatomy: Anatomy, rule: Any) -> tuple[Layer, ...]:
    """The layers to record, in the model's order: those a rule chooses among, and all others.

    rule: the rule's state. A rule may choose among single tensors, or groups of its own.
    """
    chosen = list(_layers(rule))
    taken = {name for layer in chosen for name in layer.names}
    others = [layer for layer in layering.group(anatomy) if taken.isdisjoint(layer.names)]
    return tuple(sorted([*chosen, *others], key=lambda layer: anatomy.names.index(layer.names[0])))


def load(folder: Path) -> dict[str, pa.Table]:
    """The tables in a run's folder, by name."""
    return {name: _read(folder / _file(name), schema) for name, schema in SCHEMAS.items()}


def _layers(state: Any) -> Sequence[Layer]:
    if isinstance(state, Layer):
        return [state]
    return [layer for part in state for layer in _layers(part)] if isinstance(state, tuple) else []


def _by_layer(sent: Mapping[str, int]) -> Counter[str]:
    layers = Counter[str]()
    for name, size in sent.items():
        layers[name.rpartition(".")[0] or name] += size
    return +layers  # without what took no bytes


def _text(reason: str) -> str:
    """Without what UTF-8 cannot hold, such as bytes of a file's name in an exception."""
    return reason.encode(errors="replace").decode()


def _file(name: str) -> str:
    return f"{name}.parquet"


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} cannot be read as a table ({reason}); put back a sound copy or run again.") from error
    if not table.schema.equals(schema):
        raise InputError(
            f"{path} has the columns {', '.join(table.schema.names)}, or other types than those expected; "
            "it was written by another version of fedlag: use that one or run again."
        )
    return table
