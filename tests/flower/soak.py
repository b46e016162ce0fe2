"""`make soak`: many rounds while nodes and the SuperLink are killed at random; then every bit is accounted for.

    PYTHONPATH=tests python -m flower.soak [--rounds 100] [--seed 0]

At the end the parameters must be, bit for bit, those of a run in this process in which whoever was left out of a round
was not asked in that round. That kills changed anything else is thereby excluded.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fedlag import experiment
from fedlag.flower.new import new
from fedlag.results import read
from flower.deployment import deployment
from flower.runs import in_process, same, scores, server_of

CLIENTS = 4
SETTINGS = (
    *("algorithm=scaffold", "personal.kind=lag", "personal.k=1", "personal.warmup=2", "federation=sequential"),
    *("data.clients=4", "data.limit=300", "data.split=classes", "data.classes_per_client=3"),
    *("model.hidden=[8, 8]", "training.batch=10", "training.lr=0.1", "training.epochs=3"),
)


def soak(folder: Path, rounds: int, seed: int, pause: tuple[float, float], timeout: float) -> bool:
    """Whether every bit is as it must be."""
    one = experiment.load({}, *SETTINGS, f"rounds={rounds}", f"evaluate_every={rounds}")
    app, killed, chance = folder / "app", Counter[str](), random.Random(seed)
    new(app, one)
    with deployment(folder / "deployment", nodes=CLIENTS) as made:
        run = made.submit(app, folder="run", minimum=1, timeout=timeout)
        done = made.folder / "run"
        while not finished(done):
            time.sleep(chance.uniform(*pause))
            if made.status(run).startswith("finished"):  # by itself, or because its SuperLink was killed
                run = made.submit(app, folder="run", minimum=1, timeout=timeout)
            elif not finished(done):
                victim = chance.choice(["superlink", *(f"node-{client}" for client in range(CLIENTS))])
                killed[victim] += 1
                print(f"{rounds_of(done)} rounds; killing {victim}", flush=True)
                made.restart(victim)
    dropped = [(row["round"], row["client"]) for row in read(done).dropped.to_pylist()]
    for row in read(done).dropped.to_pylist():
        print(f"round {row['round']}: client {row['client']} {row['reason']}")
    print(f"killed: {dict(killed)}; left out: {len(dropped)} of {rounds * CLIENTS} replies")
    expected = in_process(one, folder, dropped)
    return same(server_of(done), server_of(expected)) and scores(done) == scores(expected)


def finished(run: Path) -> bool:
    manifest = run / "manifest.json"
    return manifest.exists() and '"finished"' in manifest.read_text()


def rounds_of(run: Path) -> int:
    events = run / "events.jsonl"
    return len(events.read_text().splitlines()) if events.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, nargs=2, default=(20.0, 90.0), help="seconds between two kills")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a client is waited for")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sound = soak(Path(folder), given.rounds, given.seed, given.pause, given.timeout)
    print("Every bit is as in a run where those left out were not asked." if sound else "The bits differ.")
    sys.exit(not sound)


if __name__ == "__main__":
    main()
