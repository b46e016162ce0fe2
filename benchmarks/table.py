"""Results as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from benchmarks.plan import ENGINES, PLAIN, Case
from benchmarks.protocol import Result

Results = dict[Case, list[Result]]  # a case -> its replicates

SECTIONS = {"speed": "Side by side", "load": "Beside a busy core", "curves": "Scaling"}
MIB = 2**20
BUSY = 0.2  # cores used by others above which a figure is marked


def speed(results: Results, peak: Result | None) -> str:
    """A table for every workload."""
    names = dict.fromkeys(case.name for case in results)
    return "\n\n".join(_workload(name, {c: r for c, r in results.items() if c.name == name}, peak) for name in names)


def load(results: Results, peak: Result | None) -> str:
    """What a busy core beside it does to a round."""
    header = ("engine", "s a round, quiet", "beside a busy core", "times as long")
    rows = []
    for engine in dict.fromkeys(case.engine for case in results):
        own = {case.loaded: seconds(runs) for case, runs in results.items() if case.engine == engine}
        quiet, busy = own.get(False), own.get(True)
        slower = f"{median(busy) / median(quiet):.2f}" if quiet and busy else ""
        rows.append([ENGINES[engine].label, spread(quiet), spread(busy), slower])
    return grid(header, rows)


def curves(results: Results, peak: Result | None) -> str:
    """Seconds a round, a line for every point."""
    engines = list(dict.fromkeys(case.engine for case in results))
    rows = []
    for name in dict.fromkeys(case.name for case in results):
        own = {case.engine: seconds(runs) for case, runs in results.items() if case.name == name}
        rows.append([name, *(spread(own.get(engine)) for engine in engines)])
    return grid(["s a round", *(ENGINES[engine].label for engine in engines)], rows)


def unmeasured(failures: Iterable[tuple[str, str]]) -> str:
    """What could not be measured, and why."""
    return "\n".join(f"- {what}: {why}" for what, why in dict.fromkeys(failures))


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds(replicates: list[Result]) -> list[float]:
    """The median round of every replicate, in ascending order."""
    return sorted(median(one["rounds"]) for one in replicates)


def spread(taken: list[float] | None) -> str:
    """Median, least and most of figures in ascending order."""
    return f"{median(taken):.3g} ({taken[0]:.3g}–{taken[-1]:.3g})" if taken else ""


def _workload(name: str, results: Results, peak: Result | None) -> str:
    workload = next(iter(results)).workload
    plain = [seconds(replicates) for case, replicates in results.items() if case.engine in PLAIN]
    baseline = min(plain, key=median) if plain else None
    title = (
        f"**{name}**: {workload.clients} clients of {workload.train} images, batch {workload.batch}"
        f"{', all clients scored in every round' if workload.evaluate else ''}"
    )
    header = ("engine", "s a round (least–most)", "times plain (worst–best)", "images/s", "of peak", "MiB", "start s",
              "first round s", "others' cores", "loss")  # fmt: skip
    rows = [_row(case, replicates, baseline, peak) for case, replicates in results.items()]
    return f"{title}\n\n{grid(header, rows)}"


def _row(case: Case, replicates: list[Result], baseline: list[float] | None, peak: Result | None) -> list[str]:
    taken = seconds(replicates)
    images = case.workload.images / median(taken)
    foreign = max(one["foreign"] for one in replicates)
    label, note = ENGINES[case.engine].label, replicates[0]["note"]
    return [
        label if not note or note in label else f"{label} ({note})",
        spread(taken),
        _ratio(baseline, taken) if baseline else "",
        f"{images:,.0f}",
        _share(case, images, peak),
        f"{median(one['memory'] for one in replicates) / MIB:,.0f}",
        f"{median(one['startup'] for one in replicates):.1f}",
        f"{median(one['first'] for one in replicates):.3g}",
        f"{foreign:.2f}{' !' if foreign > BUSY and not case.loaded else ''}",
        f"{replicates[0]['loss']:.3f}",
    ]


def _ratio(baseline: list[float], taken: list[float]) -> str:
    """How many times as fast as the baseline: medians, then least favourable and most favourable replicates."""
    middle = median(baseline) / median(taken)
    return f"{middle:.2f} ({baseline[0] / taken[-1]:.2f}–{baseline[-1] / taken[0]:.2f})"


def _share(case: Case, images: float, peak: Result | None) -> str:
    """Of the machine's matrix-product rate; evaluation is not counted as work."""
    if peak is None or case.name not in peak["operations"]:
        return ""
    kind = "bf16" if ENGINES[case.engine].options.get("precision") == "bf16" else "fp32"
    return f"{images * peak['operations'][case.name] / peak[kind]:.0%}"
