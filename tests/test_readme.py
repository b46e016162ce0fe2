"""What the README shows is what fedlag does; what fedlag exports exists."""

import re
import tomllib
from pathlib import Path

import pytest

import fedlag
from fedlag import cli, experiment

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (lines,) = [block for block in blocks("python") if "import fedlag" in block]
    exec(compile(lines, "README.md", "exec"), {})
    assert 0 < float(capsys.readouterr().out) <= 1


def test_the_values_of_the_readme_are_methods():
    names = {name: getattr(fedlag, name) for name in fedlag.__all__}
    (lines,) = [block for block in blocks("python") if "FedAvg(personal=LAG" in block]
    made = [eval(line, names) for line in lines.splitlines()]
    assert all(isinstance(one, fedlag.Algorithm) for one in made)


def test_the_experiment_of_the_readme_is_one():
    (settings,) = blocks("toml")
    assert experiment.load(tomllib.loads(settings)).method == "fedlag"


def test_the_commands_of_the_readme_exist():
    shown = {name for block in blocks("sh") for name in re.findall(r"^fedlag (\S+)", block, re.MULTILINE)}
    assert shown == cli.main.commands.keys() - {"show", "completion"}
    targets = {name for block in blocks("sh") for name in re.findall(r"^make (\S+)", block, re.MULTILINE)}
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert targets == {"demo", "test"}
    assert all(f"\n{target}:" in makefile for target in targets)


def test_the_files_the_readme_speaks_of_exist():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        if not link.startswith("http"):
            assert (REPOSITORY / link).exists(), link


def test_every_public_name_has_a_home_and_every_home_is_public():
    assert sorted(fedlag.__all__) == sorted(name for names in fedlag._HOMES.values() for name in names)
    assert all(getattr(fedlag, name) is not None for name in fedlag.__all__)
    with pytest.raises(AttributeError, match="fedavgg"):
        fedlag.fedavgg  # noqa: B018
