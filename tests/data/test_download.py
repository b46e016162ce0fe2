from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedlag.data.download import Download, fetch
from fedlag.errors import InputError

from .official_files import digest

CONTENT = np.random.default_rng(0).integers(0, 256, 500_000, np.uint8).tobytes()


class Server(ThreadingHTTPServer):
    """Serves one file on this machine and hangs up after `patience` bytes, for as many requests as are listed."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.patience: list[int] = []
        self.knows_ranges = True
        self.refuses = False
        self.ranges: list[str | None] = []  # what was asked for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.knows_ranges else 0
        body = self.server.content[start:]
        if self.server.refuses or (start and not body):
            self.send_error(404 if self.server.refuses else 416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.patience.pop(0)] if self.server.patience else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def wanted(server: Server) -> Download:
    return Download(server.url, len(CONTENT), digest(CONTENT))


def test_a_file_is_downloaded_once(server: Server, tmp_path: Path):
    for _ in range(2):
        assert fetch(wanted(server), tmp_path / "new").read_bytes() == CONTENT
    assert server.ranges == [None]


def test_a_cut_connection_is_resumed_where_it_stopped(server: Server, tmp_path: Path):
    server.patience = [200_000, 100_000]
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT
    first, *resumed = server.ranges
    assert first is None
    starts = [int(wanted[6:-1]) for wanted in resumed if wanted]
    assert len(starts) == 2
    assert 100_000 < starts[0] < starts[1] <= 300_000


def test_what_arrived_before_a_failure_is_kept_for_next_time_but_not_believed(server: Server, tmp_path: Path):
    server.patience = [300_000, 0]
    with pytest.raises(InputError, match="goes on where this stopped"):
        fetch(wanted(server), tmp_path)
    assert not (tmp_path / "file.bin").exists()
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] is not None
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock") == ["file.bin"]


def test_a_server_that_cannot_resume_is_asked_for_the_whole_again(server: Server, tmp_path: Path):
    server.knows_ranges = False
    server.patience = [200_000]
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT
    assert len(server.ranges) == 2


def test_other_content_is_dropped_and_the_next_try_starts_afresh(server: Server, tmp_path: Path):
    server.content = bytes(len(CONTENT))
    with pytest.raises(InputError, match="not the official file"):
        fetch(wanted(server), tmp_path)
    assert not list(tmp_path.glob("file.bin*[!k]"))
    server.content = CONTENT
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, None]


def test_a_leftover_longer_than_what_the_server_has_does_not_block_forever(server: Server, tmp_path: Path):
    (tmp_path / "file.bin.part").write_bytes(bytes(400_000))
    server.content = CONTENT[:300_000]
    with pytest.raises(InputError, match="416"):
        fetch(wanted(server), tmp_path)
    server.content = CONTENT
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT


def test_an_altered_file_in_the_cache_is_fetched_again(server: Server, tmp_path: Path):
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT


def test_a_leftover_of_other_content_is_dropped_and_the_next_try_starts_afresh(server: Server, tmp_path: Path):
    (tmp_path / "file.bin.part").write_bytes(bytes(100_000))
    with pytest.raises(InputError, match="not the official file"):
        fetch(wanted(server), tmp_path)
    assert not (tmp_path / "file.bin").exists()
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT


def test_a_server_that_refuses_is_one_sentence_with_its_answer(server: Server, tmp_path: Path):
    server.refuses = True
    with pytest.raises(InputError, match="the server answered 404"):
        fetch(wanted(server), tmp_path)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    (tmp_path / "taken").touch()
    with pytest.raises(InputError, match="File exists"):
        fetch(Download("http://127.0.0.1:9/file.bin", 1, "0" * 64), tmp_path / "taken")
