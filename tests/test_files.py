"""Laws of writing files."""

import errno
import os
import stat

import pytest

from fedlag.errors import InputError
from fedlag.files import write_atomically


def test_what_is_given_is_what_is_there(tmp_path):
    path = tmp_path / "file"
    for content in (b"first", b"", b"the last, and longer"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]


def test_a_function_may_write_the_content(tmp_path):
    write_atomically(tmp_path / "file", lambda path: path.write_text("content"))
    assert (tmp_path / "file").read_text() == "content"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_others_may_read_it_as_the_system_allows(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    write_atomically(tmp_path / "ours", b"")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def content(part):
        part.write_text("new")
        assert path.read_text() == "old"

    write_atomically(path, content)
    assert path.read_text() == "new"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file_alone(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_text("old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(InputError, match=r"file cannot be written \(No space left on device\)"):
        write_atomically(path, b"new")
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


def test_a_folder_that_is_none_is_named(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match=r"taken.file cannot be written"):
        write_atomically(tmp_path / "taken" / "file", b"")
    with pytest.raises(InputError, match=r"absent.file cannot be written \(No such file or directory\)"):
        write_atomically(tmp_path / "absent" / "file", b"")


def test_any_other_error_passes_and_leaves_nothing(tmp_path):
    def broken(part):
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", broken)
    assert os.listdir(tmp_path) == []
