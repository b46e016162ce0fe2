"""Every method has a page, and every command on it loads."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from fedlag import experiment
from fedlag.algorithms import REGISTRY

DOCS = Path(__file__).parents[1] / "docs"
INDEX = (DOCS / "methods/README.md").read_text(encoding="utf-8")
PAGES = {
    path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "methods").glob("*.md") if path.name != "README.md"
}


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("method_pages", DOCS / "method_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["fedavg", "local", "fedper", "scaffold", "fedcac"])
def test_bytes_on_the_page_and_in_the_table_are_those_the_ledger_counts(name, generator):
    """For a few: all of them take most of a minute."""
    sent = generator.traffic(name)
    assert f"{sent.down:.2f} MB down, {sent.up:.2f} MB up" in PAGES[name]
    assert re.search(rf"^\| \[`{name}`\].*\| {sent.down:.2f} \| {sent.up:.2f} \|", INDEX, re.MULTILINE)


def test_the_table_has_a_row_for_every_method():
    assert re.findall(r"^\| \[`([^`]+)`\]", INDEX, re.MULTILINE) == list(REGISTRY)


def test_every_page_tells_bytes_but_where_they_hang_on_what_clients_send():
    assert {name for name, text in PAGES.items() if "**Bytes a round**" not in text} == {
        *("fedlag", "fedlag-official", "random-layers")
    }


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_has_a_page_with_a_command_that_runs_it(name):
    assert any(f"algorithm={name}" in text for text in PAGES.values())


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_an_experiment(page):
    commands = re.findall(r"fedlag run ([^`\n]+)", PAGES[page])
    assert commands
    for command in commands:
        words = [word for word in shlex.split(command, comments=True) if "=" in word]
        experiment.load({}, *words)
