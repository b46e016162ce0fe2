"""One self-contained HTML file that shows what came out of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedlag import results
from fedlag.errors import InputError
from fedlag.files import write_atomically


def report(folders: Sequence[Path | str], out: Path | str, focus: str | None = None) -> Path:
    """Write the page about these runs, or about all runs within these folders.

    focus: the method the verdict is about; FedLAG, or the most telling other one, unless given.
    """
    try:
        from fedlag.report import evidence, page
    except ModuleNotFoundError as error:
        raise InputError(f"The report needs {error.name}; install it with `pip install 'fedlag[report]'`.") from error

    runs = [results.read(folder) for given in folders for folder in _runs(Path(given))]
    write_atomically(Path(out), page.render(evidence.gather(runs, focus)).encode())
    return Path(out)


def _runs(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs directly within it."""
    if (folder / "experiment.toml").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/experiment.toml"))
    if not found:
        raise InputError(
            f"{folder} is not a run, nor are there runs in it: there is no experiment.toml. "
            "`fedlag list runs` shows what there is."
        )
    return found
