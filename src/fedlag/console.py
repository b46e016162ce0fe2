"""What a person sees in the terminal: live progress, tables, sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from fedlag import results
from fedlag.experiment import Experiment

Watch = Callable[[Experiment, dict[str, Any]], None]

console = Console()


def say(sentence: str) -> None:
    console.print(sentence, highlight=False, soft_wrap=True)


@contextmanager
def watching(experiments: Sequence[Experiment], quiet: bool = False) -> Iterator[Watch]:
    """A line for every method while it runs: rounds, accuracy, what is personal, time left; and one for all."""
    if quiet:
        yield lambda experiment, event: None
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
        TextColumn("{task.fields[accuracy]}"),
        TextColumn("{task.fields[personal]}", table_column=Column(ratio=1, no_wrap=True)),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=console,
        expand=True,
    )
    lines: dict[str, TaskID] = {}
    for one in experiments:
        if one.title not in lines:
            total = sum(other.rounds for other in experiments if other.title == one.title)
            lines[one.title] = progress.add_task(one.title, total=total, accuracy="", personal="")
    everything = sum(one.rounds for one in experiments)
    overall = progress.add_task("[bold]all", total=everything, accuracy="", personal="") if len(lines) > 1 else None
    reached = {one.hash: 0 for one in experiments}

    def watch(experiment: Experiment, event: dict[str, Any]) -> None:
        if event["type"] == "started":
            if len(lines) == 1:
                say(f"{event['name'].capitalize()}: {event['why']}.")
            return
        progress.start()  # not before there is something to show: a refusal should stand alone
        line = lines[experiment.title]
        number = experiment.rounds if event["type"] == "finished" else event["round"]
        advance, reached[experiment.hash] = number - reached[experiment.hash], number
        fields: dict[str, Any] = {}
        if event["type"] == "round":
            if event["validation_accuracy"] is not None:
                fields["accuracy"] = f"valid. {event['validation_accuracy']:.1%}"
            fields["personal"] = _personal(event["personal"])
            for client, reason in event["dropped"].items():
                progress.print(f"{experiment.title}, round {number}: client {client} was left out: {reason}")
            if event["skipped"]:
                progress.print(f"{experiment.title}, round {number}: no reply could be used; the round was skipped.")
        progress.update(line, advance=advance, **fields)
        if overall is not None:
            progress.update(overall, advance=advance)

    try:
        yield watch
    finally:
        if progress.live.is_started:
            progress.stop()


def _personal(layers: Sequence[str]) -> str:
    if not layers:
        return "nothing personal"
    return "personal: " + (", ".join(layers) if len(layers) <= 3 else f"{len(layers)} layers")


def show_rows(rows: Sequence[Any], nothing: str = "Nothing to show.", bold: int | None = None) -> None:
    """Rows of plain values (dicts or named tuples) as a table; the first says the columns, one may stand out."""
    if not rows:
        say(nothing)
        return
    plain = [row if isinstance(row, Mapping) else row._asdict() for row in rows]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column, value in plain[0].items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(str(column).replace("_", " "), justify="right" if number else "left", overflow="fold")
    for place, row in enumerate(plain):
        table.add_row(*(_cell(value) for value in row.values()), style="bold" if place == bold else None)
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def show_comparison(comparison: results.Comparison) -> None:
    """How good the models are, then who beats whom; a method stands out if all others are shown to be worse."""
    leaders = comparison.leaders
    first = list(comparison.methods).index(leaders[0]) if len(leaders) == 1 else None
    show_rows(results.printable(comparison), bold=first)
    show_rows(results.standings(comparison), bold=first)
    if comparison.added:
        say("* not asked for: every comparison has it")


def show_runs(runs: Sequence[results.Run]) -> None:
    """One run in full: whose models do how well, and accuracy against bytes; several by a line each."""
    summaries = [results.summarise(run) for run in runs]
    if len(runs) > 1:
        show_rows(results.side_by_side(summaries))
        return
    (one,) = summaries
    took = "unfinished" if one.seconds is None else f"{one.seconds:,.1f} seconds"
    say(f"{results.title(one.method)}, seed {one.seed}: {one.rounds} rounds, {took}, {one.folder}")
    show_rows(results.models(one))
    say("headline: best on validation data; best on test: known only in hindsight")
    show_rows(results.chosen(results.course(runs[0])))
