"""The paper's experiments: every file makes sense at every scale, and what comes out is what the runs say."""

import csv
import json
import re
import tomllib

import numpy as np
import pytest
from click.testing import CliRunner

from fedlag import cli, personal, results
from fedlag import reproduce as reproducing
from fedlag.errors import InputError
from fedlag.reproduce import cells, export, judge, paper, study
from fedlag.results import Estimate

NAMES = study.names()
CELLS = [(name, scale) for name in NAMES for scale in study.SCALES]


def test_there_are_twelve_experiments():
    assert [f"E{number}" for number in range(1, 13)] == NAMES


@pytest.mark.parametrize(("name", "scale"), CELLS)
def test_every_experiment_makes_sense_at_every_scale(name, scale):
    plan = study.plan(name, scale)
    assert plan.experiments or plan.size.also
    assert set(plan.study.figures) <= {"curves", "dots", "conflicts"}
    assert plan.study.measure in cells.MEASURES
    assert plan.size.takes
    hashes = [one.hash for seeds in plan.experiments.values() for one in seeds]
    assert len(set(hashes)) == len(hashes)  # no two rows are the same experiment
    if scale != "smoke":
        for one in reproducing.experiments(plan):
            assert one.data.name != "digits"


@pytest.mark.parametrize("name", [name for name in NAMES if study.load(name).printed])
def test_the_papers_numbers_stand_beside_ours(name):
    printed = paper.numbers(study.load(name).printed).cells
    at_paper = study.plan(name, "paper")
    met = {(row, at_paper.columns[column].printed) for row, column in at_paper.experiments} & printed.keys()
    if name == "E6":  # looks at two of the columns only
        met |= {cell for cell in printed if not cell[1].startswith(("CIFAR-10 α=0.1", "CIFAR-100 α=0.1"))}
    if name == "E1":
        assert len(met) == 88
    assert met == printed.keys()
    at_laptop = study.plan(name, "laptop")
    assert any((row, at_laptop.columns[column].printed) in printed for row, column in at_laptop.experiments)


def test_what_is_expected_can_be_looked_at():
    for name in NAMES:
        plan = study.plan(name, "paper")
        known = {"rows": plan.rows, "columns": plan.columns}
        for expected in plan.study.expect:
            partners = zip(expected.higher, expected.lower, strict=True)
            assert any({high, low} <= known[expected.of].keys() for high, low in partners), expected.that


def test_numbers_the_paper_prints():
    assert paper.numbers("table1").cells["fedlag", "CIFAR-10 α=0.1"] == (85.21, 0.29)
    assert paper.numbers("table2").cells["k=0", "CIFAR-10 α=0.1"] == (45.47, None)
    full = paper.numbers("table7").cells
    assert len(full) == 440
    assert full["fedas", "EMNIST α=0.1, 100 %"].mean == 97.77
    block = {(row, column.removesuffix(", 20 %")): cell for (row, column), cell in full.items() if "20 %" in column}
    assert block == paper.numbers("table1").cells  # as the paper has it


def test_shared_settings_reach_the_rules_that_know_them():
    plan = study.plan("E12", "laptop")
    rules = {row: plan.experiments[row, "CIFAR-10 α=0.1"][0].algorithm.personal for row in plan.rows}
    assert (rules["fedlag"].k, rules["fedlag"].warmup) == (2, 10)
    assert (rules["fedlag-frozen"].k, rules["fedlag-frozen"].mode) == (2, "frozen")
    assert rules["random-layers"] == personal.RandomLayers(k=2, warmup=10)
    assert rules["last-layers"] == personal.Last(k=2)
    assert rules["warmstart"] == personal.WarmStart(warmup=10)
    assert rules["fedper"] == personal.Named("head.*")


def test_overrides_and_choices():
    plan = study.plan("E1", "laptop", ["rounds=7"], ["local", "fedlag"], ["MNIST α=0.1"], seeds=2)
    assert list(plan.experiments) == [("fedlag", "MNIST α=0.1"), ("local", "MNIST α=0.1")]
    first, second = plan.experiments["local", "MNIST α=0.1"]
    assert (first.rounds, first.seed, second.seed, second.data.seed) == (7, 0, 1, 1)
    assert len(study.plan("E1", "laptop").experiments["local", "CIFAR-10 α=0.1"]) == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["E13"], "Unknown experiment 'E13'"),
        (["E1", "--row", "fedlg"], "Did you mean 'fedlag'?"),
        (["E1", "--column", "CIFAR-10"], "Unknown column 'CIFAR-10'"),
        (["E1", "data.alhpa=1"], "Did you mean 'data.alpha'?"),
        (["nowhere.toml"], "nowhere.toml cannot be read"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.main, ["reproduce", *words])
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert list(tmp_path.iterdir()) == []


def run(name, folder):
    return reproducing.reproduce(study.plan(name, "smoke"), folder, workers=1, command=f"fedlag reproduce {name}")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Shared, as the experiments share their runs."""
    return tmp_path_factory.mktemp("reproduce")


@pytest.mark.parametrize("name", ["E2", "E4", "E9", "E12"])
def test_from_a_name_to_tables_and_figures(home, name):
    made = run(name, home)
    page, *others = (path.read_text(encoding="utf-8") for path in made.files)
    assert f"# {name}: {made.plan.study.title}" in page
    for figure in re.findall(r"\]\((.*?\.svg)\)", page):
        assert "<dc:description>" in (made.files[0].parent / figure).read_text(encoding="utf-8")
    lines = list(csv.DictReader((made.files[0].parent / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert [(line["row"], line["column"]) for line in lines] == list(made.cells)
    assert all(np.isfinite(float(line["ours"])) for line in lines)
    latex = (made.files[0].parent / "table.tex").read_text(encoding="utf-8")
    assert latex.count(r" \\") == len(made.plan.rows) + 2
    assert all(others)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["E1", "E3", "E5", "E6", "E7", "E8", "E10", "E11"])
def test_the_other_experiments_run_too(home, name):
    assert all(path.stat().st_size for path in run(name, home).files)


def test_what_two_experiments_need_is_run_once(home):
    run("E4", home)
    before = {path: path.stat().st_mtime_ns for path in home.glob("runs/*/manifest.json")}
    run("E4", home)
    assert before == {path: path.stat().st_mtime_ns for path in home.glob("runs/*/manifest.json")}


def test_cells_are_what_the_runs_say(home):
    made = run("E12", home)
    for cell in made.cells.values():
        (one,) = cell.runs
        summary = results.summarise(one)
        assert cell.ours.mean == pytest.approx(100 * summary.headline.mean)
        rows = one.rounds.to_pylist()
        right: dict[int, float] = {}
        asked: dict[int, float] = {}
        scores = {
            (row["round"], row["client"], row["metric"]): row["value"]
            for row in rows
            if row["stage"] == "personal" and row["part"] == "test"
        }
        for (number, client, metric), value in scores.items():
            if metric == "examples":
                asked[number] = asked.get(number, 0) + value
                right[number] = right.get(number, 0) + value * scores[number, client, "accuracy"]
        assert cell.as_printed.mean == pytest.approx(max(100 * right[number] / asked[number] for number in asked))


def test_conflicts_are_shares_of_pairs(home):
    made = run("E9", home)
    layers, found = cells.shares(made.cells["layers", "digits α=0.1"].runs[0])
    rows = made.cells["layers", "digits α=0.1"].runs[0].layers.to_pylist()
    assert layers == ["body.fc1", "head"]
    for row in rows:
        assert row["personal"] is False
        assert found[layers.index(row["layer"]), row["round"] - 1] == 100 * row["conflicts"] / row["pairs"]


def made_up(ours, printed):
    return cells.Cell(Estimate(ours, None), Estimate(ours, None), printed and paper.Printed(printed, None), {}, [])


def test_the_order_of_rows_is_compared_where_the_paper_tells_them_apart():
    one = {
        ("a", "x"): made_up(1.0, 90.0),
        ("b", "x"): made_up(2.0, 80.0),
        ("c", "x"): made_up(3.0, 95.0),
        ("d", "x"): made_up(4.0, 95.0),
        ("e", "x"): made_up(5.0, None),
        ("f", "x"): made_up(4.0, 70.0),  # level with d, which is no order
        ("a", "y"): made_up(9.0, 1.0),
    }
    assert judge.order(one, "x") == (4, 9)
    assert one["b", "x"].difference == -78.0


def test_expectations_are_met_or_not():
    one = {("a", "x"): made_up(5.0, None), ("b", "x"): made_up(3.0, None), ("a", "y"): made_up(4.0, None)}
    above = study.Expectation(that="", higher=("a", "b", "a"), lower=("b", "a", "nowhere"))
    assert judge.outcome(above, one).leads == {"a over b, x": 2.0, "b over a, x": -2.0}
    assert judge.outcome(above, one).met == 1
    close = study.Expectation(that="", of="columns", higher=("x",), lower=("y",), within=1.0)
    assert judge.outcome(close, one).met == 1


def test_a_file_of_ones_own(tmp_path):
    table = tomllib.loads((study.FOLDER / "E2.toml").read_text(encoding="utf-8"))
    (tmp_path / "mine.toml").write_text(
        'title = "Mine"\nitem = "Nowhere"\nasks = "?"\nsays = "!"\nmethods = ["local", "fedavg"]\n'
        '[smoke]\ncolumns = ["digits IID"]\ntakes = "a second"\n[laptop]\ntakes = ""\n[paper]\ntakes = ""\n'
    )
    plan = study.plan(str(tmp_path / "mine.toml"), "smoke")
    assert plan.name == "mine"
    assert plan.experiments["local", "digits IID"][0].data.split == "iid"
    with pytest.raises(InputError, match="Unknown setting 'tilte'"):
        study.make_dataclass(study.Study, {**table, "tilte": ""}, "")


def test_what_there_is_and_how_long_it_takes():
    done = CliRunner().invoke(cli.main, ["reproduce", "--json"])
    assert [row["experiment"] for row in json.loads(done.stdout)] == NAMES


def test_what_latex_would_read_as_commands_is_escaped():
    assert export._escape("CIFAR-10 α=0.1, 20 % & k_1") == r"CIFAR-10 $\alpha$=0.1, 20 \% \& k\_1"
