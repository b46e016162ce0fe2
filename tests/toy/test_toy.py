import json
import sys
from xml.etree import ElementTree

import pytest

import fedlag.toy
from fedlag.errors import InputError
from fedlag.toy import figure, toy
from fedlag.toy.experiment import experiment
from fedlag.toy.report import numbers

ROUNDS = 3


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return toy(tmp_path_factory.mktemp("toy") / "new" / "folder", seed=5, rounds=ROUNDS)


def test_every_figure_is_written_as_svg_and_png(result):
    folder = result.files[0].parent
    names = {f"toy-{name}.{suffix}" for name in ("domains", "paths", "cosines", "lag") for suffix in ("svg", "png")}
    assert {path.name for path in folder.iterdir()} == names | {"toy.json"} == {path.name for path in result.files}
    for path in folder.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_numbers_are_those_of_the_runs(result):
    facts = json.loads(result.files[0].read_text())
    assert (facts["seed"], facts["rounds"]) == (5, ROUNDS)
    row = next(row for row in facts["runs"] if row["data"] == "IID" and row["method"] == "FedAvg")
    run = result.experiment.fedavg["IID"]
    assert row["start"] == [0, 0, 0]
    assert row["models"] == run.models[-1].tolist()
    assert row["accuracy"] == run.accuracy()[-1].tolist()
    assert row["conflicts"] == [conflict.count for conflict in run.conflicts]
    assert len(row["mean_accuracy"]) == ROUNDS + 1
    assert {len(counts) for counts in row["scalar_conflicts"].values()} == {ROUNDS}


def test_the_summary_says_what_each_method_reaches(result):
    text = "\n".join(result.summary)
    for run in (result.experiment.lag, result.experiment.alone, *result.experiment.fedavg.values()):
        assert f"{100 * float(run.accuracy()[-1].mean()):.1f} %" in text


def test_the_same_seed_gives_the_same_files(monkeypatch, result):
    monkeypatch.setattr(figure, "FIGURES", (figure.lag,))
    written = {path.name: path.read_bytes() for path in result.files}
    again = experiment(seed=5, rounds=ROUNDS)
    assert json.loads(written["toy.json"])["runs"] == numbers(again)
    for name, content in figure.render(again).items():
        assert written[name] == content


def test_without_matplotlib_it_says_at_once_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "fedlag.toy.figure")
    monkeypatch.delattr(fedlag.toy, "figure")
    with pytest.raises(InputError, match=r'pip install "fedlag\[plots\]"'):
        toy(tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(InputError, match="taken cannot be written"):
        toy(tmp_path / "taken")


@pytest.mark.parametrize(("wrong", "name"), [({"seed": -1}, "seed"), ({"rounds": 0}, "rounds")])
def test_a_value_that_makes_no_sense_is_refused_by_name(tmp_path, wrong, name):
    with pytest.raises(InputError, match=name):
        toy(tmp_path, **wrong)
