"""The benchmark command on workloads of a few steps: it compares equal work, and says what it could not measure."""

import math
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from benchmarks import __main__ as driver
from benchmarks import plan, protocol, table
from benchmarks.engines import networks, plain
from benchmarks.plan import Case
from benchmarks.workloads import GREY, WORKLOADS, Workload, data, quick
from fedlag import nets

TINY = Workload("mlp", GREY, batch=8, clients=4, train=20, test=10, rounds=2, evaluate=True)


@pytest.fixture(scope="module")
def measured():
    cases = [Case("speed", "mlp", TINY, engine) for engine in ("plain-1", "ours-sequential")]
    broken = replace(cases[0], workload=replace(TINY, model="none"), name="broken")
    return driver.collect([*cases, broken], replicates=1)


def test_engines_do_equal_work(measured):
    results, _ = measured
    assert len(results) == 2
    for replicates in results.values():
        for one in replicates:
            assert one["steps"] == 4 * 3  # 20 images in batches of 8
            assert len(one["rounds"]) == TINY.rounds
            assert 0 < one["loss"] < math.log(TINY.classes) + 1
            assert one["memory"] > 2**20


def test_the_table_has_a_line_for_every_engine_measured(measured):
    title, _, header, _, *rows = table.speed(measured[0], None).splitlines()
    assert title.startswith("**mlp**: 4 clients of 20 images, batch 8")
    assert [row.split(" | ")[0] for row in rows] == ["| plain loop, 1 thread", "| fedlag, sequential"]
    assert all(row.count("|") == header.count("|") for row in rows)
    assert "1.00 (1.00–1.00)" in rows[0]


def test_a_round_beside_a_busy_core_is_compared_with_a_quiet_one():
    quiet, busy = (Case("load", "mlp", TINY, "plain-1", loaded=loaded) for loaded in (False, True))
    line = table.load({quiet: [{"rounds": [1.0, 2.0, 9.0]}], busy: [{"rounds": [3.0]}, {"rounds": [7.0]}]}, None)
    assert line.splitlines()[-1] == "| plain loop, 1 thread | 2 (2–2) | 5 (3–7) | 2.50 |"


def test_tables_take_the_place_of_the_old_ones(tmp_path, monkeypatch):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{driver.BEGIN}\nold\n{driver.END}\nafter\n")
    monkeypatch.setattr(driver, "README", readme)
    driver.write("new\n")
    assert readme.read_text() == f"before\n{driver.BEGIN}\nnew\n{driver.END}\nafter\n"
    assert driver.BEGIN in (driver.ROOT / "benchmarks" / "README.md").read_text()


def test_what_fails_is_named_with_its_error(measured):
    assert measured[1] == [("broken, plain loop, 1 thread", "KeyError: 'none'")]


def test_other_work_is_not_compared(monkeypatch):
    result = {"steps": 5.0, "rounds": [1.0], "foreign": 0.0}
    monkeypatch.setattr(driver.protocol, "measure", lambda *arguments: result)
    assert "5 gradient steps" in driver.take(Case("speed", "mlp", TINY, "plain"))["error"]


@pytest.mark.parametrize("model", sorted({workload.model for workload in WORKLOADS.values()}))
def test_the_plain_models_are_of_the_same_size_as_ours(model):
    workload = next(one for one in WORKLOADS.values() if one.model == model)
    ours = nets.build(model, workload.shape, workload.classes)
    assert _size(networks.build(workload)) == _size(ours)


def test_clients_get_the_same_images_every_time():
    first, again = data(TINY), data(TINY)
    assert [own.x.shape for own in first] == [(20, *GREY)] * 4
    assert all(
        (one == other).all()
        for own, same in zip(first, again, strict=True)
        for one, other in zip(own, same, strict=True)
    )


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order():
    generator = np.random.default_rng(0)
    scores, labels = generator.random((30, 4)), generator.integers(4, size=30)
    truth = labels[:, None] == np.arange(4)
    pairs = mannwhitneyu(scores[truth], scores[~truth]).statistic
    assert plain.area(scores, labels) == pytest.approx(pairs / (truth.sum() * (~truth).sum()))


def test_only_chooses_sections_workloads_and_engines():
    chosen = plan.cases(("cnn", "ours"), in_short=False)
    assert {(case.name, case.engine) for case in chosen} == {("cnn", "ours")}
    assert {case.section for case in plan.cases((), in_short=False)} == {"speed", "load", "curves"}
    assert all(case.workload == quick(case.workload) for case in plan.cases((), in_short=True))


def test_a_measurement_that_takes_too_long_is_ended(tmp_path):
    task = {"engine": "plain", "options": {}, "workload": asdict(TINY), "cores": None}
    assert protocol.measure(Path(sys.executable), task, None, limit=0.2, log=tmp_path / "log") == {
        "error": "not done after 0.2 seconds"
    }
    assert not [pid for pid in protocol._family(os.getpid()) if "benchmarks.worker" in _command(pid)]


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def _size(net):
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize("name", driver.COMPANIONS)
def test_measurements_with_a_command_of_their_own_run(name):
    assert "Ended with code" not in driver.companion(name, driver.COMPANIONS[name])
