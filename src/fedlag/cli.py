"""The command line: it parses and prints. Everything it does is a function of the package."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fedlag.errors import InputError
from fedlag.sinks import SINKS

DEMO = Path(__file__).with_name("demo.toml")  # what is compared where no file is given
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Commands(click.Group):
    """Commands in the order a newcomer meets them; refusals as one sentence and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _told_to_end():
                return super().invoke(ctx)
        except InputError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(2)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            click.echo(f"Error: {error.filename or 'a file'} cannot be used: {error.strerror or error}.", err=True)
            sys.exit(2)
        except KeyboardInterrupt:
            click.echo(
                "Interrupted. The same command, or `fedlag resume RUN`, goes on from the last checkpoint.", err=True
            )
            sys.exit(130)


@contextmanager
def _told_to_end() -> Iterator[None]:
    """A request to end, as `kill` and job schedulers make it, is an interruption: no process is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _changes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Arguments as (experiment file or None, overrides)."""
    files = [value for value in values if "=" not in value]
    if len(files) > 1:
        raise click.BadParameter(f"at most one experiment file; given were {', '.join(files)}")
    return (files[0] if files else None), tuple(value for value in values if "=" in value)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Files, dotted settings and method names for the shell."""
    from click.shell_completion import CompletionItem

    if incomplete.startswith("algorithm="):
        from fedlag.algorithms import REGISTRY

        names = [f"algorithm={name}" for name in REGISTRY]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
    keys = [f"{key}=" for key in SETTINGS]
    found = [CompletionItem(key) for key in keys if incomplete and key.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _told(logs: tuple[str, ...]) -> list[str]:
    """The option --log as an override."""
    return [f"log.sinks={json.dumps(logs)}"] if logs else []


SETTINGS = (
    *("algorithm", "seed", "rounds", "evaluate_every", "federation", "store", "sampling.fraction"),
    *("personal.k", "personal.xi", "personal.warmup", "personal.mode", "personal.unit", "personal.norm"),
    *("data.name", "data.root", "data.clients", "data.split", "data.alpha", "data.seed", "data.limit"),
    *("model.name", "model.norm", "model.hidden"),
    *("training.lr", "training.batch", "training.epochs", "training.momentum"),
    *("training.weight_decay", "training.precision"),
)

changes = click.argument("changes", nargs=-1, callback=_changes, metavar="[EXPERIMENT.toml] [KEY=VALUE]...",
                         shell_complete=_complete)  # fmt: skip
at_once = click.option("--workers", type=click.IntRange(1), help="Processes at once; one per core unless given.")
on_cores = click.option("--workers", type=click.IntRange(1), help="Cores to use; all of them unless given.")
log = click.option("--log", "logs", multiple=True, type=click.Choice(list(SINKS)),
                   help="Also tell this of every round; may be given again.")  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for a machine to read.")


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(package_name="fedlag")
def main() -> None:
    """Personalised federated learning that people can trust.

    Many clients train one model without pooling their data. FedLAG watches the updates they send: a layer in which
    many pairs of clients move in opposite directions stays personal for the next round, all others are averaged.

    \b
    Start here:    fedlag compare                              real digits, seven methods, under a minute
    One run:       fedlag run algorithm=fedlag data.name=mnist data.alpha=0.1
    From a file:   fedlag run experiment.toml algorithm=fedper personal.k=3
    What exists:   fedlag list methods                         also: models, data, runs
    """


@main.command()
@changes
@click.option("--out", type=click.Path(path_type=Path), help="Directory of all runs of this comparison.")
@at_once
@log
@as_json
def compare(changes: tuple[str | None, tuple[str, ...]], out: Path | None, workers: int | None, logs: tuple[str, ...],
            as_json: bool) -> None:  # fmt: skip
    """Methods side by side on the same data, weights and sampling.

    Without a file: the handwritten digits that come with fedlag, 20 clients with skewed labels, five seeds. Which
    methods stand in a comparison is its [compare] table; [personal] settings reach the methods that know them. Training
    alone, FedAvg and FedAvg+FT are always among them, and beside LAG also a warm start and layers drawn by lot.

    \b
    fedlag compare
    fedlag compare data.alpha=0.5 compare.seeds=5
    fedlag compare experiment.toml compare.methods='["local","fedavg","fedlag"]'
    """
    from fedlag import comparison as comparing
    from fedlag import console, execution, experiment, results

    source, overrides = changes
    base = experiment.settings(source or DEMO, *overrides, *_told(logs))
    experiments = experiment.variants(base)
    folder = out or execution.RUNS / f"compare-{Path(source).stem if source else 'demo'}"
    with console.watching(experiments, quiet=as_json) as watch:
        added = [one["name"] for one in experiment.controls(base)]
        comparison = comparing.compare(experiments, folder, workers, watch, added)
    if as_json:
        click.echo((folder / "comparison.json").read_text(encoding="utf-8"), nl=False)
        return
    console.show_comparison(comparison)
    console.say(results.verdict(comparison))
    console.say(f"Results: {folder}/ (comparison.json, and a directory of tables for every run)")


@main.command()
@changes
@click.option("--out", type=click.Path(path_type=Path), help="Directory of all trials.")
@at_once
@as_json
def tune(changes: tuple[str | None, tuple[str, ...]], out: Path | None, workers: int | None, as_json: bool) -> None:
    """Choose every method's learning rate on validation data, over the same grid, and write what to compare then.

    The [tune] table holds the grid and over how many seeds it is tried; what is finished is never run again.

    \b
    fedlag tune
    fedlag tune experiment.toml 'tune.lr=[0.02,0.05,0.1]' tune.seeds=2
    """
    from fedlag import console, execution, experiment, results
    from fedlag import tune as tuning

    source, overrides = changes
    base = experiment.settings(source or DEMO, *overrides)
    stem = Path(source).stem if source else "demo"
    folder = out or execution.RUNS / f"tune-{stem}"
    experiments = [one for _, _, seeds in tuning.trials(base) for one in seeds]
    with console.watching(experiments, quiet=as_json) as watch:
        choices, _ = tuning.tune(base, folder, workers, watch)
    if as_json:
        click.echo((folder / "tune.json").read_text(encoding="utf-8"), nl=False)
        return
    console.show_rows(tuning.rows(choices))
    edge = [results.title(one.method) for one in choices if one.at_the_edge]
    if edge:
        console.say(f"At the edge of the grid, where a wider one may hold better: {', '.join(edge)}.")
    console.say(f"Now: fedlag compare {folder}/tuned.toml --out {execution.RUNS}/compare-{stem}-tuned")


@main.command()
@changes
@click.option("--out", type=click.Path(path_type=Path), help="Directory of all runs and of the results store.")
@at_once
@log
@as_json
def sweep(changes: tuple[str | None, tuple[str, ...]], out: Path | None, workers: int | None, logs: tuple[str, ...],
          as_json: bool) -> None:  # fmt: skip
    """Every combination of some settings: runs what is missing, gathers all in one store of Parquet files.

    \b
    fedlag sweep algorithm=fedlag personal.k=0,1,2 personal.warmup=5 seeds=5
    fedlag sweep experiment.toml 'personal.k=0,3,5,10' 'training.lr=0.01,0.05'
    """
    from fedlag import console, execution, experiment
    from fedlag import sweep as sweeping

    source, words = changes
    experiments = sweeping.experiments(experiment.settings(source or {}, *_told(logs)), *words)
    folder = out or execution.RUNS / (f"sweep-{Path(source).stem}" if source else "sweep")
    with console.watching(experiments, quiet=as_json) as watch:
        store = sweeping.sweep(experiments, folder, workers, watch)
    rows = sweeping.rows(store, experiments, words)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    console.show_rows(rows)
    console.say(f"Results: {store}/ (runs.parquet, and rounds, layers and bytes of every run)")


@main.command()
@click.argument("name", required=False, metavar="[E1 ... E12]")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--scale", default="smoke", show_default=True, type=click.Choice(["smoke", "laptop", "paper"]))
@click.option("--row", "rows", multiple=True, help="Only this row of the table; may be given again.")
@click.option("--column", "columns", multiple=True, help="Only this column; may be given again.")
@click.option("--seeds", type=click.IntRange(1), help="So many seeds for every cell.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory of all experiments; runs/reproduce unless given."
)
@at_once
@as_json
def reproduce(name: str | None, overrides: tuple[str, ...], scale: str, rows: tuple[str, ...],
              columns: tuple[str, ...], seeds: int | None, out: Path | None, workers: int | None,
              as_json: bool) -> None:  # fmt: skip
    """An experiment of the paper, run and put beside the paper's numbers; without a name, which there are.

    \b
    fedlag reproduce
    fedlag reproduce E2 --scale laptop
    fedlag reproduce E1 --scale laptop --column 'CIFAR-10 α=0.1' --seeds 1 rounds=20
    """
    from fedlag import console
    from fedlag import reproduce as reproducing

    if name is None:
        listed = reproducing.listed()
        click.echo(json.dumps(listed, indent=2)) if as_json else console.show_rows(listed)
        return
    plan = reproducing.study.plan(name, scale, overrides, rows, columns, seeds)
    chosen = [*(f"--row={row}" for row in rows), *(f"--column={column}" for column in columns)]
    command = [
        "fedlag",
        "reproduce",
        name,
        "--scale",
        scale,
        *chosen,
        *([f"--seeds={seeds}"] if seeds else []),
        *overrides,
    ]
    with console.watching(reproducing.experiments(plan), quiet=as_json) as watch:
        made = reproducing.reproduce(plan, out or reproducing.HOME, workers, watch, shlex.join(command))
    if as_json:
        click.echo(json.dumps(reproducing.rows(made), indent=2))
        return
    console.show_rows(reproducing.rows(made))
    console.say(f"Results: {made.files[0]}, with tables and figures beside it")


@main.command()
@changes
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run's directory; named by method, seed and hash unless given."
)
@on_cores
@log
@as_json
def run(changes: tuple[str | None, tuple[str, ...]], out: Path | None, workers: int | None, logs: tuple[str, ...],
        as_json: bool) -> None:  # fmt: skip
    """Run one experiment; an interrupted one goes on from its last checkpoint.

    \b
    fedlag run algorithm=fedlag rounds=50
    fedlag run experiment.toml algorithm=fedper personal.k=3 data.alpha=0.5
    """
    from fedlag import console, execution, experiment

    source, overrides = changes
    one = experiment.load(source or {}, *overrides, *_told(logs))
    with console.watching([one], quiet=as_json) as watch:
        folder = execution.execute(one, out, lambda event: watch(one, event), workers)
    _show([folder], as_json)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="RUN")
@on_cores
@as_json
def resume(folder: Path, workers: int | None, as_json: bool) -> None:
    """Continue an interrupted run from its last checkpoint, to the same bits as if it had never stopped."""
    from fedlag import console, execution, experiment

    execution.must_be_a_run(folder)
    one = experiment.load(folder / "experiment.toml")
    with console.watching([one], quiet=as_json) as watch:
        execution.execute(one, folder, lambda event: watch(one, event), workers)
    _show([folder], as_json)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@as_json
def show(folders: tuple[Path, ...], as_json: bool) -> None:
    """What came out of one run or several."""
    _show(list(folders), as_json)


def _show(folders: list[Path], as_json: bool) -> None:
    from fedlag import console, execution, results

    for folder in folders:
        execution.must_be_a_run(folder)
    runs = [results.read(folder) for folder in folders]
    if as_json:
        rows = [
            results.as_row(results.summarise(run)) | {"course": [moment._asdict() for moment in results.course(run)]}
            for run in runs
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    console.show_runs(runs)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("-o", "--out", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@click.option("--method", help="Whose verdict; that of FedLAG unless given, where it was run.")
def report(folders: tuple[Path, ...], out: Path, method: str | None) -> None:
    """One HTML file that shows runs, or all runs in a folder: it opens without a network, anywhere.

    \b
    fedlag report runs/compare-demo -o report.html
    """
    from fedlag import console
    from fedlag.report import report

    console.say(f"Report: {report(folders, out, method)}")


@main.command("list")
@click.argument("what", type=click.Choice(["methods", "models", "data", "runs"]))
@click.option("--in", "folder", type=click.Path(path_type=Path), default=Path("runs"), help="Where runs lie.")
@as_json
def list_(what: str, folder: Path, as_json: bool) -> None:
    """What there is: methods, models, data or runs."""
    from fedlag import catalogue, console

    rows = catalogue.runs(folder) if what == "runs" else getattr(catalogue, what)()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        console.show_rows(rows, nothing=f"No {what} in {folder}." if what == "runs" else f"No {what}.")


@main.command()
@changes
@as_json
def data(changes: tuple[str | None, tuple[str, ...]], as_json: bool) -> None:
    """How an experiment's data are divided: examples and labels of every client.

    \b
    fedlag data data.name=cifar10 data.alpha=0.1 data.clients=100
    """
    from fedlag import console, experiment
    from fedlag.data.federated import federate

    source, overrides = changes
    federated = federate(experiment.load(source or {}, *overrides).data)
    rows = federated.summary()
    if as_json:
        click.echo(json.dumps({"hash": federated.hash, "clients": rows}, indent=2))
        return
    console.show_rows(rows)
    console.say(f"{federated.dataset.name}: {federated.clients} clients, partition {federated.hash[:12]}")


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="UPDATE.safetensors...")
@click.option(
    "--before", type=click.Path(path_type=Path), help="The weights all clients started from; FILES then hold weights."
)
@click.option("--xi", default=0.0, show_default=True, help="A pair of clients conflicts when its cosine is below.")
@click.option("--unit", default="module", show_default=True, type=click.Choice(["module", "tensor"]))
@as_json
def analyze(files: tuple[Path, ...], before: Path | None, xi: float, unit: str, as_json: bool) -> None:
    """In which layers do clients conflict? For update files of any framework, one file per client."""
    from fedlag import analysis as analysis
    from fedlag import console

    rows = analysis.as_rows(analysis.analyze_files(files, before, xi, unit))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        console.show_rows(rows)


@main.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/toy"), show_default=True)
@click.option("--seed", default=0, show_default=True)
@as_json
def toy(out: Path, seed: int, as_json: bool) -> None:
    """The paper's two-dimensional example: four domains, two boundaries, and the figure that explains conflicts."""
    from fedlag import console
    from fedlag import toy as example

    result = example.toy(out, seed)
    if as_json:
        click.echo((out / "toy.json").read_text(encoding="utf-8"), nl=False)
        return
    for sentence in result.summary:
        console.say(sentence)
    console.say(f"Figures: {out}/")


@main.command()
@changes
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/lemma"), show_default=True)
@click.option(
    "--rounds", type=click.IntRange(1), default=30, show_default=True, help="Rounds looked at in each setting."
)
@as_json
def lemma(changes: tuple[str | None, tuple[str, ...]], out: Path, rounds: int, as_json: bool) -> None:
    """The paper's lemma and bound, predicted and measured: is it better to keep a layer or to average it?

    \b
    fedlag lemma                                              the toy, the digits, and bowls with known constants
    fedlag lemma data.name=mnist data.limit=6000 model.name=lenet training.batch=10 training.lr=0.1
    """
    from fedlag import console, experiment
    from fedlag import lemma as theory

    source, overrides = changes
    base = experiment.settings(source or DEMO, *overrides)
    one = experiment.load(
        {key: value for key, value in base.items() if key not in ("compare", "personal", "algorithm")}
    )
    found = theory.lemma(one, out, one.seed, rounds)
    if as_json:
        click.echo((out / "lemma.json").read_text(encoding="utf-8"), nl=False)
        return
    for rows in theory.rows(found).values():
        console.show_rows(rows)
    console.say(f"Every layer and round: {out}/lemma.json")


@main.group()
def flower() -> None:
    """Clients on other machines, with Flower: pip install "fedlag[flower]"."""


@flower.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@changes
def new(folder: Path, changes: tuple[str | None, tuple[str, ...]]) -> None:
    """Write a Flower app that runs an experiment: `flwr run DIR` starts it.

    \b
    fedlag flower new four-sites data.clients=4 rounds=20
    fedlag flower new four-sites experiment.toml algorithm=fedrep
    """
    from fedlag import console, experiment
    from fedlag.flower.new import new as write

    source, overrides = changes
    for path in write(folder, experiment.load(source or {}, *overrides)):
        console.say(str(path))


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print shell completion: `eval "$(fedlag completion bash)"`."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    if made is not None:
        click.echo(made(main, {}, "fedlag", "_FEDLAG_COMPLETE").source())
    if shell == "bash":
        click.echo("COMP_WORDBREAKS=${COMP_WORDBREAKS//=/}  # key=value is one word")
