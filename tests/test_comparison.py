"""What stands side by side differs in the method and in nothing else."""

import json
from collections import Counter
from itertools import islice

import pytest
import torch

from fedlag import comparison, execution, experiment, fit, results
from fedlag.algorithms import REGISTRY
from fedlag.run import rounds

SMALL = {
    "rounds": 3,
    "data": {"clients": 5, "alpha": 0.5, "limit": 300},
    "model": {"hidden": [8]},
    "training": {"lr": 0.1},
    "sampling": {"fraction": 0.6},
    "personal": {"k": 1, "warmup": 1},
    "compare": {"methods": ["fedper", "fedlag"], "seeds": 1},
}


@pytest.fixture
def gradients(monkeypatch):
    """Counts gradients of local training."""
    counted, real = Counter(), fit.gradient

    def counting(names, moving, f):
        counted["taken"] += 1
        return real(names, moving, f)

    monkeypatch.setattr(fit, "gradient", counting)
    return counted


def test_methods_share_partition_initial_weights_cohorts_and_gradient_steps(gradients):
    experiments = experiment.variants(SMALL)
    assert [one.title for one in experiments][2:] == ["local", "fedavg", "fedavg-ft", "warmstart", "random-layers"]
    partitions, weights, cohorts, steps = set(), [], set(), set()
    for one in experiments:
        parts = execution.prepare(one)
        gradients.clear()
        done = list(islice(rounds(parts.task, parts.server, parts.federation, parts.sampling, one.seed), one.rounds))
        partitions.add(parts.federated.hash)
        weights.append(parts.server.params)
        cohorts.add(tuple(tuple(round.letters) for round in done))
        steps.add(gradients["taken"])
    assert len(partitions) == len(cohorts) == len(steps) == 1
    assert steps.pop() > 3 * 3
    assert all(own.keys() == weights[0].keys() for own in weights)
    assert all(torch.equal(own[name], weights[0][name]) for own in weights for name in own)


BY_THEIR_PAPERS = {"fedrep": 11, "fedpac": 2, "ditto": 2, "fedas": 2, "perfedavg": 2, "pfedme": 5, "fedaf": 0}


def test_whoever_takes_more_steps_than_fedavg_is_known(gradients):
    """docs/protocol.md names them. After the first round, in which newcomers may differ."""
    data = {"clients": 4, "split": "iid", "limit": 200}
    counted = {}
    for name in REGISTRY:
        one = experiment.load({"algorithm": name, "data": data, "model": {"hidden": [4]}, "training": {"lr": 0.05}})
        parts = execution.prepare(one)
        coming = rounds(parts.task, parts.server, parts.federation, parts.sampling, one.seed)
        next(coming)
        gradients.clear()
        next(coming)
        counted[name] = gradients["taken"]
    assert {name: taken / counted["fedavg"] for name, taken in counted.items()} == {
        name: BY_THEIR_PAPERS.get(name, 1) for name in REGISTRY
    }


def test_seeds_differ_in_everything_and_the_partition_may_stay(tmp_path):
    def prepared(redraw):
        two = experiment.variants({**SMALL, "compare": {"methods": ["local"], "seeds": 2, "redraw": redraw}})[:2]
        return [execution.prepare(one) for one in two]

    one, other = prepared(redraw=True)
    assert one.federated.hash != other.federated.hash
    assert not torch.equal(one.server.params["head.weight"], other.server.params["head.weight"])
    one, other = prepared(redraw=False)
    assert one.federated.hash == other.federated.hash
    assert not torch.equal(one.server.params["head.weight"], other.server.params["head.weight"])


def test_what_was_added_is_marked_in_the_file(tmp_path):
    found = comparison.compare(experiment.variants(SMALL), tmp_path, workers=1, added=["local"])
    report = json.loads((tmp_path / "comparison.json").read_text())
    assert {row["method"]: row["added"] for row in report["methods"]}["local"]
    assert report["verdict"] == results.verdict(found)
    assert sum(row["added"] for row in report["methods"]) == 1
