from __future__ import annotations

import re
import tomllib
from pathlib import Path

from fedlag.data.settings import SPLITS, Data
from fedlag.data.sources import SOURCES

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_every_example_on_the_page_runs(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks("python")), {})
    for table in blocks("toml"):
        Data(**tomllib.loads(table)["data"])


def test_the_page_lists_every_data_set_with_its_true_size_and_every_split():
    for name, source in SOURCES.items():
        assert f"| `{name}` | {source.size:,} | {source.classes} | {source.shape[0]} × {source.shape[1]} " in PAGE
    for split in SPLITS:
        assert f"| `{split}` |" in PAGE
