"""Rounds against the number of clients: seconds, memory and disk, with clients kept in memory or on disk.

    python benchmarks/population.py                                  # ten participants a round, 10 to 10,000 clients
    python benchmarks/population.py --clients 10000 --participants 100 --model cnn --rounds 10

FedLAG with a personal layer; every client keeps a copy of the model. The clients' examples are made up when asked for.
Each line is a process of its own; seconds are of its processor, per round, the median without the first.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from fedlag import nets
from fedlag.algorithm import Training
from fedlag.algorithms.fedavg import FedAvg
from fedlag.federation.sequential import Sequential, one_thread
from fedlag.flow import Batch
from fedlag.lag import LAG
from fedlag.net import Model
from fedlag.round import begin
from fedlag.run import Sampling, rounds
from fedlag.store import FILE, Store

EXAMPLES, CLASSES, SHAPE = 20, 10, (1, 28, 28)


def examples(client: int, part: str) -> Batch:
    generator = torch.Generator().manual_seed(client)
    y = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
    return Batch(torch.randn(EXAMPLES, *SHAPE, generator=generator) + y.view(-1, 1, 1, 1) / CLASSES, y)


def measure(clients: int, participants: int, model: str, kept: str, number: int) -> dict[str, Any]:
    """Some rounds in this process, as a run would go through them, with a checkpoint of the clients after each."""
    net = nets.build(model, SHAPE, CLASSES, seed=0)
    algorithm = FedAvg(personal=LAG(k=1, warmup=1))
    task, server = begin(algorithm, Model(net), Training(batch=10), clients, seed=0)
    federation = Sequential(task, examples, seed=0)
    sampling = Sampling(fraction=participants / clients)
    seconds, store = [], None
    with tempfile.TemporaryDirectory() as folder, one_thread():
        if kept == "disk":
            store = Store(Path(folder) / FILE, server)
            federation.restore(store)
        before = time.process_time()
        for done in islice(rounds(task, server, federation, sampling, seed=0), number):
            if store is not None:
                store.commit()
                store.follow(done.server.round)
            seconds.append(time.process_time() - before)
            before = time.process_time()
        on_disk = sum(path.stat().st_size for path in Path(folder).iterdir())
        if store is not None:
            store.close()
    return {
        "clients": clients,
        "participants": participants,
        "kept": kept,
        "met": len(done.server.met),
        "seconds": statistics.median(seconds[1:]),
        "peak_mib": peak() / 2**20,
        "disk_mib": on_disk / 2**20,
    }


def peak() -> int:
    """Most memory this process ever had, in bytes."""
    status = Path("/proc/self/status")  # getrusage may start from the peak of its parent
    if status.exists():
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--participants", type=int, default=10, help="in every round")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kept", nargs="+", default=["memory", "disk"], choices=["memory", "disk"])
    parser.add_argument("--json", action="store_true", help="one line of JSON for each measurement")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.clients[0], given.participants, given.model, given.kept[0], given.rounds)))
        return
    if not given.json:
        print("clients  participants  kept      met  CPU s/round  peak MiB  disk MiB")
    for clients in given.clients:
        for kept in given.kept:
            command = [sys.executable, __file__, "--one", "--clients", clients, "--kept", kept, "--model", given.model]
            command += ["--participants", min(given.participants, clients), "--rounds", given.rounds]
            line = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.strip()
            one = json.loads(line)
            print(
                line
                if given.json
                else "{clients:7,}  {participants:12}  {kept:6}  {met:6,}  {seconds:11.4f}  {peak_mib:8.0f}  "
                "{disk_mib:8.0f}".format(**one),
                flush=True,
            )


if __name__ == "__main__":
    main()
