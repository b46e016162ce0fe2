"""Conflict analysis against the number of clients, and against the loop over pairs that is usually published.

    python -m benchmarks.analysis                             # 20 and 100 clients of 4.4 million parameters
    python -m benchmarks.analysis --stream 1000               # a cohort that does not fit, block by block

Every line is a process of its own on one core; seconds are of its processor, the best of three. The loop takes a cosine
for every pair and layer; it is timed on the first client's pairs and scaled by the number of all. The rate counts what
one plain product of all clients with all would take (2 x clients² x parameters), and stands beside that of float32
products of 2048 x 2048, measured before and after in the same process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.population import peak
from fedlag.divergence import analyze
from fedlag.kernels import fast_products
from fedlag.memory import room

LAYERS, BLOCK = 20, 65_536


def cpu(work: Callable[[], object], times: int = 3) -> float:
    """Processor seconds, the best of some."""
    best = float("inf")
    for _ in range(times):
        before = time.process_time()
        work()
        best = min(best, time.process_time() - before)
    return best


def gemm() -> float:
    """The machine's own rate, in float32 operations a second, by the fastest kernel there is."""
    a = torch.randn(2048, 2048)
    with fast_products():
        return float(2 * 2048**3 / cpu(lambda: a @ a, 4))


def pair_loop(updates: dict[str, Tensor], first: int) -> int:
    """Conflicts of one client with all after it: what the loop over pairs does before it takes the next one."""
    return sum(
        float(functional.cosine_similarity(layer[first], layer[other], dim=0)) < 0
        for layer in updates.values()
        for other in range(first + 1, len(layer))
    )


def made_up(clients: int, parameters: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for start in range(0, parameters, BLOCK):
        yield torch.empty(clients, min(BLOCK, parameters - start)).uniform_(-1, 1, generator=generator)


def measure(clients: int, parameters: int, streamed: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    rate, result = gemm(), {}
    if streamed:
        making = cpu(lambda: sum(1 for _ in made_up(clients, min(parameters, 4 * BLOCK))), 1)
        making *= parameters / min(parameters, 4 * BLOCK)
        seconds = cpu(lambda: analyze({"layer": made_up(clients, parameters)}), 1) - making
    else:
        size = parameters // LAYERS
        updates = {f"layer {k}": room(torch.empty(size), clients).uniform_(-1, 1) for k in range(LAYERS)}
        seconds = cpu(lambda: analyze(updates))
        result["loop_seconds"] = cpu(lambda: pair_loop(updates, 0)) * clients / 2
        result["times_faster"] = result["loop_seconds"] / seconds
    rate = max(rate, gemm())
    done = 2 * clients**2 * parameters / seconds
    return {
        "clients": clients,
        "parameters": parameters,
        "streamed": streamed,
        "seconds": seconds,
        "gflops": done / 1e9,
        "gemm_gflops": rate / 1e9,
        "share": done / rate,
        "peak_mib": peak() / 2**20,
        **result,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[20, 100])
    parser.add_argument("--stream", type=int, nargs="*", default=[], help="cohorts that are given block by block")
    parser.add_argument("--parameters", type=int, default=4_400_000)
    parser.add_argument("--json", action="store_true", help="one line of JSON for each measurement")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        streamed = bool(given.stream)
        print(json.dumps(measure((given.stream or given.clients)[0], given.parameters, streamed)))
        return
    if not given.json:
        print("clients  parameters  CPU s    GFLOP/s  share of GEMM  peak MiB  pair loop s  times faster")
    for option, cohorts in (("--clients", given.clients), ("--stream", given.stream)):
        for clients in cohorts:
            command = [
                sys.executable,
                "-m",
                "benchmarks.analysis",
                "--one",
                option,
                clients,
                "--parameters",
                given.parameters,
            ]
            line = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.strip()
            print(line if given.json else as_text(json.loads(line)), flush=True)


def as_text(one: dict[str, Any]) -> str:
    text = "{clients:7,}  {parameters:10,}  {seconds:7.3f}  {gflops:7.0f}  {share:13.0%}  {peak_mib:8.0f}".format(**one)
    if "loop_seconds" in one:
        text += "  {loop_seconds:11.2f}  {times_faster:11.1f}x".format(**one)
    return text + ("  (streamed)" if one["streamed"] else "")


if __name__ == "__main__":
    main()
