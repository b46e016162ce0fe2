"""Where a run's events go besides `events.jsonl`: TensorBoard, MLflow, Weights & Biases.

A sink is opened for a run and takes its events, one for each round. It is told at which round the run goes on, so that
a resumed run continues what the sink has already. Events say nothing new: everything is also in the run's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedlag.errors import InputError, unknown

if TYPE_CHECKING:
    from fedlag.experiment import Experiment

Event = dict[str, Any]

PROJECT = "fedlag"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Log:
    """The `[log]` table: which sinks a run's events also go to. It doesn't change a run's results, nor its hash."""

    sinks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.sinks:
            if name not in SINKS:
                raise unknown("log.sinks", name, SINKS)


class Sink(Protocol):
    """What there is to be told of a run."""

    def __call__(self, event: Event) -> None:
        """A round is done."""

    def close(self) -> None:
        """Nothing more will come, for now or for good."""


@contextmanager
def opened(experiment: Experiment, folder: Path, round: int) -> Iterator[Callable[[Event], None]]:
    """All the sinks of an experiment as one. round: how many rounds the run has behind it.

    One that fails is told no more: a run doesn't end because a server went away.
    """
    with ExitStack() as stack:
        sinks: dict[str, Sink] = {}
        for name in experiment.log.sinks:
            sinks[name] = _open(name, experiment, folder, round)
            stack.callback(_attempt, name, sinks[name].close)

        def tell(event: Event) -> None:
            for name, sink in list(sinks.items()):
                if not _attempt(name, sink, event):
                    del sinks[name]

        yield tell


def _attempt(name: str, do: Callable[..., object], *arguments: object) -> bool:
    try:
        do(*arguments)
    except Exception as error:
        log.warning("The sink %r failed and is told no more: %s", name, error)
        return False
    return True


def _open(name: str, experiment: Experiment, folder: Path, round: int) -> Sink:
    try:
        return SINKS[name](experiment, folder, round)
    except Exception as error:  # what their packages raise is not ours to know
        raise InputError(f"The sink {name!r} cannot be opened: {error}") from error


def must_be_installed(log: Log) -> None:
    for name in log.sinks:
        if not find_spec(name):
            raise InputError(
                f'The sink {name!r} needs {name}, which is not installed; run: pip install "fedlag[{name}]"'
            )


def numbers(event: Event) -> dict[str, float]:
    """What of an event can be drawn: its numbers, and those of every layer."""
    made = {
        "validation_accuracy": event["validation_accuracy"],
        "personal_layers": len(event["personal"]),
        "dropped_clients": len(event["dropped"]),
        "seconds": event["seconds"],
        **{f"conflicts/{layer}": share for layer, share in event["conflicts"].items()},
        **{f"personal/{layer}": layer in event["personal"] for layer in {*event["conflicts"], *event["personal"]}},
    }
    return {name: float(value) for name, value in made.items() if value is not None}


class TensorBoard:
    """Scalars in the run's folder `tensorboard`; `tensorboard --logdir runs` shows them."""

    def __init__(self, experiment: Experiment, folder: Path, round: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(folder / "tensorboard", purge_step=round + 1)
        if round == 0:
            self._writer.add_text("experiment", f"```toml\n{experiment.toml()}\n```")

    def __call__(self, event: Event) -> None:
        for name, value in numbers(event).items():
            self._writer.add_scalar(name, value, event["round"])

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of MLflow's experiment "fedlag", where its own settings (MLFLOW_TRACKING_URI …) say.

    A resumed run goes on in the one tagged with its hash.
    """

    def __init__(self, experiment: Experiment, folder: Path, round: int) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()
        found = self._client.get_experiment_by_name(PROJECT)
        place = found.experiment_id if found else self._client.create_experiment(PROJECT)
        known = self._client.search_runs([place], f"tags.{PROJECT} = '{experiment.hash}'") if round else []
        self._run = (known[0] if known else self._new(experiment, folder, place)).info.run_id

    def _new(self, experiment: Experiment, folder: Path, place: str) -> Any:
        from fedlag.config import flat

        run = self._client.create_run(place, run_name=folder.name, tags={PROJECT: experiment.hash})
        for name, value in flat(experiment.table()).items():
            self._client.log_param(run.info.run_id, name, value)
        return run

    def __call__(self, event: Event) -> None:
        for name, value in numbers(event).items():
            self._client.log_metric(self._run, name, value, step=event["round"])

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandB:
    """A run of the project "fedlag", named by its hash, where W&B's own settings (WANDB_MODE=offline …) say."""

    def __init__(self, experiment: Experiment, folder: Path, round: int) -> None:
        import wandb

        self._run = wandb.init(
            project=PROJECT,
            dir=folder,
            id=experiment.hash,
            name=folder.name,
            config=experiment.table(),
            resume="allow",
        )

    def __call__(self, event: Event) -> None:
        self._run.log(numbers(event), step=event["round"])

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Callable[[Experiment, Path, int], Sink]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
