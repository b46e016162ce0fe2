"""Taking a decision again without a client gives what LAG would have decided, had the client not been there."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlag import execution, experiment, pairs, results
from fedlag.divergence import conflict
from fedlag.lag import LAG
from fedlag.report.stability import decisions

BASE = {
    "algorithm": "fedlag",
    "rounds": 9,
    "data": {"clients": 6, "limit": 300},
    "model": {"hidden": [12, 8]},
    "training": {"lr": 0.1},
}
RULES = [
    {"k": 1, "warmup": 3},
    {"k": 2, "warmup": 2, "xi": -0.05, "min_ratio": 0.1},
    {"k": 1, "warmup": 2, "hold": 3},
    {"k": 1, "warmup": 4, "mode": "frozen"},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("fraction", [1.0, 0.7])
def test_with_everyone_the_decision_is_the_one_that_was_taken(rule, fraction, tmp_path):
    one = experiment.load({**BASE, "personal": rule, "sampling": {"fraction": fraction}})
    run = results.read(execution.execute(one, tmp_path / "run"))
    made = decisions(LAG(**rule), run.layers.to_pylist(), pairs.load(run.folder).to_pylist())
    taken = {}
    for row in run.layers.to_pylist():
        taken.setdefault(row["round"], set())
        if row["personal"]:
            taken[row["round"]].add(row["layer"])
    frozen = rule.get("mode") == "frozen"
    expected = [rule["warmup"]] if frozen else range(rule["warmup"] + 1, 10)
    assert [decision.round for decision in made] == list(expected)
    for decision in made:
        assert decision.chosen == taken[decision.round]


def recorded(updates):
    """Rows of both tables for one round; updates: layer -> (clients, size)."""
    layers, rows = [], []
    clients = len(next(iter(updates.values())))
    for name, update in updates.items():
        found = conflict(torch.tensor(update @ update.T))
        layers.append(
            {
                "round": 1,
                "layer": name,
                "conflicts": found.count,
                "pairs": found.pairs,
                "mean_cosine": found.mean_cosine,
                "personal": False,
            }
        )
        cosines = found.cosines.numpy()[np.triu_indices(clients, 1)]
        rows.append({"round": 1, "layer": name, "clients": [10 * c for c in range(clients)], "cosines": cosines})
    return layers, rows


@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(3, 7), k=st.integers(0, 3))
def test_leaving_a_client_out_is_the_same_as_its_absence(seed, clients, k):
    generator = np.random.default_rng(seed)
    updates = {name: generator.standard_normal((clients, 3)) for name in ("a", "b", "c")}
    rule = LAG(k=k, warmup=0)
    (decision,) = decisions(rule, *recorded(updates))
    for place in range(clients):
        rest = {name: np.delete(update, place, axis=0) for name, update in updates.items()}
        seen = {row["layer"]: (row["conflicts"], row["pairs"], row["mean_cosine"]) for row in recorded(rest)[0]}
        assert decision.without[10 * place] == frozenset(rule.choose(seen, {}))


def test_a_choice_that_hangs_on_one_client_is_seen_to():
    """In layer b only client 3 dissents; in layer a nobody does."""
    together = np.ones((4, 2))
    dissent = together.copy()
    dissent[3] *= -1
    (decision,) = decisions(LAG(k=1, warmup=0), *recorded({"a": together, "b": dissent}))
    assert decision.chosen == {"b"}
    assert decision.pivotal == [30]
    assert decision.share("b") == 3 / 4
    assert decision.share("a") == 0


def test_two_clients_are_too_few_to_leave_one_out():
    apart = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert decisions(LAG(k=1, warmup=0), *recorded({"a": apart})) == []


def test_a_frozen_choice_of_which_a_round_is_missing_is_not_taken_again():
    layers, rows = recorded({"a": np.eye(4) - 0.5})
    rule = LAG(k=1, warmup=2, mode="frozen")
    later = [{**row, "round": 2} for row in layers]
    assert len(decisions(rule, layers + later, rows + [{**row, "round": 2} for row in rows])) == 1
    assert decisions(rule, layers + later, rows) == []
