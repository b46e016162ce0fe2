"""How long importing and asking for help take; prints a table in Markdown."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from benchmarks.protocol import ROOT
from benchmarks.table import grid, spread

COMMANDS = {
    "`import torch`": ("-c", "import torch"),
    "`import torch`, then `fedlag` and all its public names": (
        "-c", "import torch, fedlag; [getattr(fedlag, name) for name in fedlag.__all__]",
    ),
    "`import fedlag`": ("-c", "import fedlag"),
    "`fedlag --help`": ("-m", "fedlag", "--help"),
}  # fmt: skip


def main(arguments: list[str]) -> None:
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(1 if "--quick" in arguments else 7):
        for name, command in COMMANDS.items():
            taken[name].append(seconds([sys.executable, *command]))
    bare = median(taken["`import torch`"])
    beyond = median(taken["`import torch`, then `fedlag` and all its public names"]) - bare
    print(grid(("a new process", "s (least–most)"), [(name, spread(sorted(times))) for name, times in taken.items()]))
    print(f"\n`fedlag` adds {beyond:.2f} s to importing torch.")


def seconds(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


if __name__ == "__main__":
    main(sys.argv[1:])
