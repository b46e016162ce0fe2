"""Measure, side by side: `python -m benchmarks [--quick] [--only NAME]... [--readme]`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks import plan, protocol, table
from benchmarks.environments import CACHE, NotInstalled, python
from benchmarks.plan import ENGINES, Case
from benchmarks.protocol import ROOT, Result
from benchmarks.workloads import WORKLOADS

README = ROOT / "benchmarks" / "README.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
COMPANIONS = {  # measurements with a command of their own -> its arguments for a quick run
    "startup": ("--quick",),
    "analysis": ("--clients", "10", "--parameters", "200000"),
    "population": ("--clients", "10", "100", "--rounds", "3"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny workloads, once: shows that everything runs")
    parser.add_argument("--replicates", type=int, help="fresh processes for each figure (3; quick: 1)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME",
        help=f"a section ({', '.join((*table.SECTIONS, *COMPANIONS))}), workload or engine; may be repeated",
    )  # fmt: skip
    parser.add_argument("--readme", action="store_true", help="write the tables into benchmarks/README.md")
    given = parser.parse_args(arguments)
    known = {*table.SECTIONS, *COMPANIONS, *WORKLOADS, *ENGINES}
    if unknown := [name for name in given.only if name not in known]:
        parser.error(f"unknown name {unknown[0]!r}; known: {', '.join(sorted(known))}")
    companions = [name for name in COMPANIONS if not given.only or name in given.only]
    alone = bool(given.only) and set(given.only) <= set(COMPANIONS)
    cases = [] if alone else plan.cases(tuple(given.only), given.quick)
    replicates = given.replicates or (1 if given.quick else 3)
    tables = report(cases, replicates, companions, given.quick)
    print(tables)
    if given.readme:
        write(tables)
    return 0


def report(cases: list[Case], replicates: int, companions: list[str], quick: bool) -> str:
    """Measure, and tell in Markdown."""
    began = time.monotonic()
    peak = measured_peak(cases) if cases else None
    results, failures = collect(cases, replicates)
    minutes = (time.monotonic() - began) / 60
    parts = [heading(results, peak, replicates, quick, minutes)]
    for section in dict.fromkeys(case.section for case in results):
        own = {case: runs for case, runs in results.items() if case.section == section}
        parts += [f"### {table.SECTIONS[section]}", getattr(table, section)(own, peak)]
    if failures:
        parts += ["### Not measured", table.unmeasured(failures)]
    for name in companions:
        if importlib.util.find_spec(f"benchmarks.{name}"):
            parts += [f"### {name.capitalize()}", companion(name, COMPANIONS[name] if quick else ())]
    return "\n\n".join(parts) + "\n"


def companion(name: str, arguments: tuple[str, ...]) -> str:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=protocol.environment(), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return f"Ended with code {done.returncode}."
    return done.stdout.strip() if done.stdout.startswith("|") else f"```\n{done.stdout.strip()}\n```"


def collect(cases: list[Case], replicates: int) -> tuple[table.Results, list[tuple[str, str]]]:
    """Every case `replicates` times; in every replicate the engines of a workload change places."""
    results: table.Results = {case: [] for case in cases}
    failures: list[tuple[str, str]] = []
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.section, case.name), []).append(case)
    for group in groups.values():
        for replicate in range(replicates):
            turn = replicate % len(group)
            for case in group[turn:] + group[:turn]:
                if any(what == _title(case) for what, _ in failures):
                    continue
                result = take(case)
                say(case, result)
                if reason := result.get("unavailable") or result.get("error"):
                    failures.append((_title(case), reason.replace(f"{ROOT}/", "")))
                else:
                    results[case].append(result)
    return {case: runs for case, runs in results.items() if runs}, failures


def take(case: Case) -> Result:
    engine = ENGINES[case.engine]
    try:
        interpreter = python(engine.peer)
    except NotInstalled as error:
        return {"error": f"not installed: {error}"}
    task = {
        "engine": engine.module,
        "options": engine.options,
        "workload": asdict(case.workload),
        "cores": case.cores,
    }
    with busy_core() if case.loaded else nullcontext():
        result = protocol.measure(interpreter, task, engine.threads, case.limit, CACHE / "logs" / f"{case.engine}.txt")
    done = result.get("steps")
    if done is not None and done != case.workload.steps:
        return {"error": f"took {done:g} gradient steps a round, and the workload is {case.workload.steps}"}
    return result


def measured_peak(cases: list[Case]) -> Result:
    workloads = [(case.name, asdict(case.workload)) for case in {case.name: case for case in cases}.values()]
    command = [sys.executable, "-m", "benchmarks.peak", json.dumps(workloads)]
    done = subprocess.run(
        command, cwd=ROOT, env=protocol.environment(), stdout=subprocess.PIPE, text=True, check=True
    )  # fmt: skip
    peak: Result = json.loads(done.stdout)
    return peak


def heading(results: table.Results, peak: Result | None, replicates: int, quick: bool, minutes: float) -> str:
    """When, on what, with which versions."""
    versions = {"python": platform.python_version(), "fedlag": version("fedlag")}
    for runs in results.values():
        versions |= {name: number for name, number in runs[0]["versions"].items() if name not in versions}
    lines = [
        f"Measured on {datetime.now(UTC):%Y-%m-%d}; {processor()}, {os.cpu_count()} cores, {memory():.0f} GiB, "
        f"{platform.system()}; {', '.join(f'{name} {number}' for name, number in versions.items())}.",
        f"{replicates} fresh process{'es' if replicates > 1 else ''} for each figure: the median of their median "
        f"rounds, and the least and most of them. {minutes:.0f} minutes in all.",
    ]
    if peak:
        lines.append(
            f"Matrix products of this machine: {peak['fp32'] / 1e9:,.0f} GFLOP/s in fp32, "
            f"{peak['bf16'] / 1e9:,.0f} in bf16."
        )
    loads = [one["foreign"] for case, runs in results.items() if not case.loaded for one in runs]
    if loads and max(loads) > table.BUSY:
        lines.append(
            f"**Other processes used up to {max(loads):.2f} cores meanwhile: rows marked ! are not figures to quote.**"
        )
    if quick:
        lines.append("**Tiny workloads, to show that everything runs: none of these are figures to quote.**")
    return "\n".join(lines)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")


def memory() -> float:
    """In GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def write(tables: str) -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n{tables}{END}{after}", encoding="utf-8")


def say(case: Case, result: Result) -> None:
    reason = result.get("unavailable") or result.get("error")
    figure = reason or f"{table.seconds([result])[0]:.3f} s a round, others used {result['foreign']:.2f} cores"
    print(f"{time.strftime('%H:%M:%S')} {_title(case)}: {figure}", file=sys.stderr, flush=True)


def _title(case: Case) -> str:
    return f"{case.name}, {ENGINES[case.engine].label.replace('*', '')}"


@contextmanager
def busy_core() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
