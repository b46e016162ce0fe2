"""A virtual environment for each peer, made once and kept in .benchmarks/ (which git ignores)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.protocol import ROOT

CACHE = ROOT / ".benchmarks"
PEERS = {  # what pip is asked for; torch as constraints.txt has it, which is a build for CPUs
    "flower": ("flwr[simulation]", "torch"),
    "pfl": ("pfl", "torch"),
    "fedjax": ("fedjax",),
    "flgo": ("flgo", "torch"),
}


class NotInstalled(Exception):
    """pip could not install a peer; the text is its last word."""


def python(peer: str) -> Path:
    """The interpreter of a peer's environment, made if it is not there; ours for the empty name."""
    if not peer:
        return Path(sys.executable)
    folder = CACHE / peer
    interpreter, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        print(f"Installing {peer} into {folder.relative_to(ROOT)} (once) ...", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        constraints = CACHE / "constraints.txt"
        torch = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
        constraints.write_text("\n".join(torch) + "\n")
        _run([str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
              "--constraint", str(constraints), *PEERS[peer]])  # fmt: skip
        ready.touch()
    return interpreter


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotInstalled(next((line for line in reversed(said) if "ERROR" in line), said[-1] if said else "failed"))
