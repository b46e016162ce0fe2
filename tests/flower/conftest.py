import pytest


@pytest.fixture
def no_waiting_for_disks(monkeypatch):
    monkeypatch.setattr("fedlag.files.os.fsync", lambda handle: None)
