"""Imports point one way, and LAG is known to no algorithm."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedlag

ROOT = Path(fedlag.__file__).parent

# From the ground up. A module imports from the lines above its own, and within its own line if it is a package;
# whatever stands in no line (data, command line, reports …) is outside, and nothing inside imports it.
INSIDE = (
    ("errors", "kernels", "memory"),
    ("tree", "check"),
    ("divergence", "net", "optim"),
    ("flow",),
    ("layers", "statistics", "initial", "randomness"),
    ("condensation",),
    ("aggregate", "personal"),
    ("lag", "official", "algorithm"),
    ("twin",),
    ("fit",),
    ("round",),
    ("replies",),
    ("algorithms", "federation"),
    ("run",),
)
LEVEL = {name: level for level, names in enumerate(INSIDE) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


def module(file):
    """fedlag/algorithms/fedavg.py is algorithms.fedavg; a package is its __init__.py."""
    return ".".join(part for part in file.relative_to(ROOT).with_suffix("").parts if part != "__init__")


MODULES = {module(file): file for file in FILES}


def statements(node, deferred):
    """Every node that runs: not what is for type checkers only; what functions import unless `deferred` is False."""
    for child in ast.iter_child_nodes(node):
        typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not typing and (deferred or not isinstance(child, ast.FunctionDef)):
            yield child
            yield from statements(child, deferred)


def imports(file, deferred=True):
    """Full names of everything a file imports."""
    for node in statements(ast.parse(file.read_text()), deferred):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(file, deferred=True):
    """The modules of this package among them."""
    for name in imports(file, deferred):
        path = name.removeprefix("fedlag.")
        if path != name:
            yield path if path in MODULES else path.rpartition(".")[0]


each_file = pytest.mark.parametrize("name", MODULES)


def test_there_is_something_to_check():
    assert {"round", "algorithms.fedavg", "federation.sequential", "lag"} < MODULES.keys()
    assert "divergence" in set(ours(MODULES["lag"]))
    assert "torch" in set(imports(MODULES["divergence"]))


@each_file
def test_imports_point_one_way(name):
    top = name.partition(".")[0]
    for other in ours(MODULES[name]):
        other_top = other.partition(".")[0]
        if top in LEVEL:
            assert other_top in LEVEL, f"{name} imports {other}, which is outside"
            assert LEVEL[other_top] < LEVEL[top] or other_top == top, f"{name} imports {other}"
        elif other_top == "":
            assert name in ("cli", "__main__"), f"{name} imports the whole package"


def test_no_imports_go_round_in_circles():
    graph = {name: {other for other in ours(file, deferred=False) if other != name} for name, file in MODULES.items()}
    TopologicalSorter(graph).prepare()


@each_file
def test_algorithms_import_neither_each_other_nor_a_federation(name):
    if name.startswith("algorithms."):
        for other in ours(MODULES[name]):
            assert other.partition(".")[0] not in ("algorithms", "federation", "round", "run", "lag"), other


@each_file
def test_only_the_flower_folder_knows_flower(name):
    flower = {other for other in imports(MODULES[name]) if other.partition(".")[0] in ("flwr", "flwr_datasets")}
    assert not flower or name.partition(".")[0] == "flower"


@each_file
def test_no_algorithm_has_a_word_of_lag(name):
    if name == "algorithm" or name.startswith("algorithms."):
        assert not re.search(r"\bLAG\b|\blag\b|FedLAG", MODULES[name].read_text())


def test_measuring_needs_nothing_else_of_this_package():
    """So that updates of any framework can be judged."""
    assert set(ours(MODULES["divergence"])) == {"errors", "kernels"}
    assert not set(ours(MODULES["kernels"]))


@each_file
def test_nothing_is_ever_unpickled(name):
    text = MODULES[name].read_text()
    packages = {one.partition(".")[0] for one in imports(MODULES[name])}
    itself = name == "federation.forks"  # hears from copies of its own process, and nobody else
    assert itself or packages.isdisjoint({"pickle", "dill", "joblib", "shelve", "marshal"})
    assert not re.search(r"weights_only\s*=\s*False|allow_pickle\s*=\s*True", text)
    assert "torch.load(" not in text or "weights_only=True" in text
