from __future__ import annotations

import os
from pathlib import Path

import pytest

from .official_files import Colour, Grey


@pytest.fixture(autouse=True)
def _no_folder_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDLAG_DATA", raising=False)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets: FEDLAG_TEST_DATA, or shared/data beside the repository."""
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("FEDLAG_TEST_DATA", beside))
    if not (folder / "mnist_train.npz").is_file():
        pytest.skip("no real data: set FEDLAG_TEST_DATA to a folder with mnist_train.npz and its companions")
    return folder


@pytest.fixture
def grey() -> Grey:
    return Grey()


@pytest.fixture
def colour() -> Colour:
    return Colour()
