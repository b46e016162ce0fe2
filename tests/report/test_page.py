"""The page is one file that asks for nothing, escapes what people typed, and says what the terminal says."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from fedlag import results
from fedlag.report import disagreement, evidence
from report.conftest import fedlag

LIMIT = 3_000_000  # bytes


class Parts(HTMLParser):
    """What a browser would load, and what stands in tables and sentences."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.tags, self.rows, self.text = [], set(), [], ""
        self._script, self._evidence, self._cell = False, False, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.add(tag)
        self.addresses += [given[key] for key in ("src", "href", "action", "data", "poster") if given.get(key)]
        self._script = tag in ("script", "style")
        self._evidence = given.get("id") == "evidence"
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        self._script = self._evidence = self._cell = False

    def handle_data(self, data):
        if self._evidence:
            self.evidence = json.loads(data)
        elif not self._script:
            self.text += data
            if self._cell:
                self.rows[-1][-1] += data.strip()


def read(path):
    return Parts(path.read_text(encoding="utf-8"))


def comparison(runs):
    return results.compare([results.read(path.parent) for path in sorted(runs.glob("*/manifest.json"))])


def test_the_page_loads_nothing_and_is_small(page):
    assert page.stat().st_size < LIMIT
    assert all(address.startswith(("#", "data:")) for address in read(page).addresses)
    assert "default-src 'none'" in page.read_text(encoding="utf-8")


def test_it_says_what_the_terminal_says(runs, page):
    parts, compared = read(page), comparison(runs)
    assert results.verdict(compared) in parts.text
    for row in results.printable(compared) + results.standings(compared):
        name, *values = row.values()
        assert [name, *(value.replace("-", "−") for value in values)] in parts.rows


def test_every_chart_has_a_description_and_a_place(page):
    parts = read(page)
    specs = parts.evidence["specs"]
    assert specs.keys() == {"curves", "costs", "gains", "holdings", "conflicts", "choices", "matrix"}
    for name, spec in specs.items():
        assert spec["description"]
        assert f'id="{name}"' in page.read_text(encoding="utf-8")


def test_every_colour_is_one_of_the_style_sheet(page):
    text = page.read_text(encoding="utf-8")
    style = text.partition("<style>")[2].partition("</style>")[0]
    used = set(re.findall(r"var\((--[a-z0-9]+)\)", json.dumps(read(page).evidence["specs"])))
    assert used
    assert used <= set(re.findall(r"(--[a-z0-9]+):", style))


def test_a_single_run_has_a_page_too(runs, tmp_path):
    (alone,) = runs.glob("fedavg-s0-*")
    done = fedlag("report", alone, "-o", tmp_path / "one.html")
    assert done.exit_code == 0
    parts = read(tmp_path / "one.html")
    assert parts.evidence["specs"].keys() == {"curves", "costs", "holdings"}
    assert "There is no run of FedLAG" in parts.text or "whether its clients gain" in parts.text


def test_runs_that_recorded_neither_pairs_nor_labels_have_a_page_without_them(runs, tmp_path):
    for folder in runs.glob("*-s0-*"):
        shutil.copytree(folder, tmp_path / "old" / folder.name)
    for name in ("pairs", "labels"):
        for path in (tmp_path / "old").rglob(f"{name}.parquet"):
            path.unlink()
    assert fedlag("report", tmp_path / "old", "-o", tmp_path / "old.html").exit_code == 0
    parts = read(tmp_path / "old.html")
    assert parts.evidence["specs"].keys() == {"curves", "costs", "gains", "conflicts"}
    assert "recorded no cosines" in parts.text


def test_what_people_typed_cannot_become_markup(runs, tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    (folder,) = runs.glob("fedavg-ft-s0-*")
    shutil.copytree(folder, tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "method": evil}))
    assert fedlag("report", tmp_path / "run", "-o", tmp_path / "evil.html").exit_code == 0
    parts = read(tmp_path / "evil.html")
    assert "img" not in parts.tags
    assert evil in parts.text


def test_the_verdict_can_be_about_another_method(runs, tmp_path):
    assert fedlag("report", runs, "--method", "fedavg", "-o", tmp_path / "other.html").exit_code == 0
    assert results.verdict(comparison(runs), "fedavg") in read(tmp_path / "other.html").text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "fedlog"], "Did you mean 'fedlag'?"),
        (["nowhere"], "nowhere is not a run"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_a_sentence(runs, tmp_path, words, said):
    done = fedlag("report", runs, *words, "-o", tmp_path / "none.html")
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "none.html").exists()


def test_tables_that_fill_their_room_leave_the_page_small(page):
    """The rest of the page, and every table at its limit: still below 3 MB."""
    parts = read(page)
    rest = page.stat().st_size - len(json.dumps(parts.evidence))
    limits = {
        "curves": evidence.POINTS,
        "gains": evidence.GAINS,
        "holdings": evidence.CELLS,
        "cells": disagreement.CELLS,
    }
    full = disagreement.ROOM
    for name, limit in limits.items():
        table = parts.evidence["tables"][name]
        rows = len(next(iter(table.values())))
        full += limit * len(json.dumps(table, separators=(",", ":"))) / rows
    assert rest + len(json.dumps(parts.evidence["specs"])) + full < 0.95 * LIMIT
