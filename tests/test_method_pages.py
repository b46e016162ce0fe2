"""Every method has a page, and every command on it loads."""

import re
import shlex
from pathlib import Path

import pytest

from fedlag import experiment
from fedlag.algorithms import REGISTRY

PAGES = {
    path.stem: path.read_text(encoding="utf-8") for path in (Path(__file__).parents[1] / "docs/methods").glob("*.md")
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
