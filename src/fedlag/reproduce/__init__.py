"""The paper's experiments: run at a scale, put beside the paper's numbers, written as tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fedlag.execution import RUNS
from fedlag.experiment import Experiment
from fedlag.files import write_atomically, writing
from fedlag.pool import Watch, execute_all, ignore
from fedlag.reproduce import export, study
from fedlag.reproduce.cells import Cells, read
from fedlag.reproduce.page import page
from fedlag.reproduce.programs import PROGRAMS
from fedlag.reproduce.study import Plan

HOME = RUNS / "reproduce"


class Reproduced(NamedTuple):
    plan: Plan
    cells: Cells
    files: tuple[Path, ...]  # the page first


def reproduce(
    plan: Plan, home: Path = HOME, workers: int | None = None, watch: Watch = ignore, command: str = "fedlag reproduce"
) -> Reproduced:
    """Run what isn't finished yet and write `home/NAME-SCALE/`.

    All experiments share the runs in `home/runs`, named by their settings' hash, so what two of them need is run once.
    """
    from fedlag.reproduce import figures  # before the work: it says so when matplotlib is missing

    work = {one.hash: one for one in experiments(plan)}
    places = {name: home / "runs" / name for name in work}
    execute_all([(one, places[name]) for name, one in work.items()], workers or plan.size.workers, watch)
    found = read(plan, places)
    folder = home / f"{plan.name}-{plan.scale}"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    drawn = figures.render(plan, found) if found else {}
    told = [PROGRAMS[program](folder, rounds) for program, rounds in plan.size.also.items()]
    shown = {name: picture.shows for name, picture in drawn.items()}
    for one in told:
        shown |= one.figures
    text = page(plan, found, command, shown, [paragraph for one in told for paragraph in one.paragraphs])
    contents = {f"{plan.name}.md": text} | {name: picture.svg for name, picture in drawn.items()}
    if found:
        contents |= {"table.tex": export.latex(plan, found), "table.csv": export.table(plan, found)}
    if plan.study.measure == "conflicts":
        contents["layers.csv"] = export.layers(found)
    for name, content in contents.items():
        write_atomically(folder / name, content.encode())
    return Reproduced(plan, found, tuple(folder / name for name in contents))


def experiments(plan: Plan) -> list[Experiment]:
    """Everything to be run, each once."""
    return list({one.hash: one for seeds in plan.experiments.values() for one in seeds}.values())


def listed() -> list[dict[str, Any]]:
    """Every experiment and how long its scales take, as plain rows."""
    rows = []
    for name in study.names():
        one = study.load(name)
        rows.append({"experiment": name, "what": one.title, "paper": one.item, "laptop": one.laptop.takes})
    return rows


def rows(made: Reproduced) -> list[dict[str, Any]]:
    """Every cell as plain values, for a terminal or JSON."""
    return [
        {
            "row": row,
            "column": column,
            "seeds": len(cell.runs),
            "here": round(cell.ours.mean, 2),
            "as the paper measures": round(cell.as_printed.mean, 2),
            "paper": cell.printed.mean if cell.printed else None,
            "difference": None if cell.difference is None else round(cell.difference, 2),
        }
        for (row, column), cell in made.cells.items()
    ]
