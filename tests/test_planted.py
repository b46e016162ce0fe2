"""Federations in which the truth is planted: do verdicts say it? From training to the sentence, a hundred times."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedlag import results
from fedlag.algorithm import Training
from fedlag.algorithms import REGISTRY
from fedlag.federation.sequential import Sequential
from fedlag.flow import Batch
from fedlag.net import Model, Net
from fedlag.optim import SGD
from fedlag.round import begin
from fedlag.run import Sampling, evaluate, rounds
from fedlag.significance import OPEN, contrast
from fedlag.tables import Tables

CLIENTS, CLASSES, FEATURES, SEEDS = 8, 3, 8, 5
SIZES = {"train": 4, "validation": 6, "test": 30}


def federation(seed, conflict):
    """Few examples of one and the same task; or, with a conflict, every client has its own names for the classes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.eye(CLASSES, FEATURES) * 2

    def draw(client, count):
        y = torch.randint(CLASSES, (count,), generator=generator)
        x = centres[y] + torch.randn(count, FEATURES, generator=generator)
        return Batch(x, (y + client) % CLASSES if conflict else y)

    drawn = {(client, part): draw(client, count) for client in range(CLIENTS) for part, count in SIZES.items()}
    return lambda client, part: drawn[client, part]


def trained(method, seed, number, conflict, again=0):
    """What a run leaves, without a folder. number: of the comparison; again: other weights and shuffles."""
    place = number * SEEDS + seed
    chance = place + 10_000 * again
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chance)
        net = Net(nn.Sequential(nn.Flatten()), nn.Linear(FEATURES, CLASSES))
    training = Training(batch=4, epochs=4, optimizer=SGD(lr=0.5))
    task, server = begin(REGISTRY[method](), Model(net), training, CLIENTS, chance)
    clients, tables = Sequential(task, federation(place, conflict), chance), Tables()
    for done in islice(rounds(task, server, clients, Sampling(), chance), 3):
        tables.add_scores(done.server.round, "personal", evaluate(task, done.server, clients))
        tables.add_bytes(done)
    manifest = {"method": method, "seed": seed, "partition": str(place)}
    kept = {name: tables.table(name) for name in ("rounds", "layers", "bytes", "dropped")}
    return results.Run(Path(f"{method}-{place}"), {}, manifest, **kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conflict", "sentence"), [(False, "it beats training alone by"), (True, "it loses to training alone by")]
)
def test_a_planted_benefit_and_a_planted_harm_are_said_in_95_of_100_comparisons(conflict, sentence):
    right = 0
    for number in range(100):
        runs = [trained(method, seed, number, conflict) for method in ("local", "fedavg") for seed in range(SEEDS)]
        right += sentence in results.verdict(results.compare(runs), "fedavg")
    assert right >= 95


def test_one_comparison_of_each_kind():
    """So that the long one above is not the first to fail."""
    for conflict, outcome in ((False, "beats"), (True, "loses to")):
        runs = [trained(method, seed, 0, conflict) for method in ("local", "fedavg") for seed in range(SEEDS)]
        assert results.compare(runs).against("local")["fedavg"].outcome == outcome


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_trained_again_with_other_seeds_a_method_hardly_ever_beats_itself(method):
    """200 comparisons of five of forty partitions; which of two trainings is called the first, a coin decides."""
    first, second = (
        np.array([results.summarise(trained(method, 0, one, True, again)).headline.accuracy for one in range(40)])
        for again in (0, 1)
    )
    generator, false = np.random.default_rng(0), 0
    for _ in range(200):
        chosen = generator.choice(40, SEEDS, replace=False)
        points = 100 * (first - second)[chosen] * generator.choice([-1, 1], (SEEDS, 1))
        false += contrast(points.mean(axis=1), points.ravel()).outcome != OPEN
    assert false <= 10
