"""Files are written whole or not at all, and only where they can be."""

from __future__ import annotations

import os
import stat

import pytest

from disks import as_ordinary_user, full_disk
from fedpca.errors import FileError
from fedpca.storage import atomic


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path):
    target = tmp_path / "f"
    with atomic.writing(target) as path:
        path.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    with pytest.raises(TypeError), atomic.writing(target) as path:
        path.write_text(b"half")
    assert target.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path):
    target = tmp_path / "f"
    target.write_text("old")
    with (
        full_disk(),
        pytest.raises(FileError, match="f cannot be written: File too large"),
        atomic.writing(target) as path,
    ):
        path.write_bytes(b"new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_of_the_work_itself_stays_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError), atomic.writing(tmp_path / "f"):
        (tmp_path / "rows.npy").read_bytes()


def test_a_file_and_its_folder_are_flushed_in_this_order(tmp_path, monkeypatch):
    done = []
    fsync = os.fsync

    def watched(handle):
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        done.append(("folder" if is_folder else "file", (tmp_path / "f").exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    with atomic.writing(tmp_path / "f") as path:
        path.write_text("new")
    assert done == [("file", False), ("folder", True)]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o000, 0o666)])
def test_a_private_file_is_never_open_to_others_and_any_other_follows_the_umask(
    mask, mode, tmp_path
):
    before = os.umask(mask)
    try:
        for is_private, expected in ((True, 0o600), (False, mode)):
            target = tmp_path / f"{is_private}"
            with atomic.writing(target, private=is_private) as path:
                assert stat.S_IMODE(path.stat().st_mode) == expected
            assert stat.S_IMODE(target.stat().st_mode) == expected
    finally:
        os.umask(before)


def test_where_nothing_can_be_written_is_told_beforehand(tmp_path):
    with pytest.raises(FileError, match="is a folder; use a file name"):
        atomic.check_writable(tmp_path)
    with pytest.raises(FileError, match=r"the folder .*missing does not exist; create it first"):
        atomic.check_writable(tmp_path / "missing" / "f")
    with full_disk(), pytest.raises(FileError, match="f cannot be written: File too large; free"):
        atomic.check_writable(tmp_path / "f")
    with as_ordinary_user() as folder:
        folder.chmod(0o555)
        with pytest.raises(FileError, match="f cannot be written: Permission denied; free space"):
            atomic.check_writable(folder / "f")
        with (
            pytest.raises(FileError, match="f cannot be written: Permission denied"),
            atomic.writing(folder / "f"),
        ):
            pass
        folder.chmod(0o755)
    assert not list(tmp_path.iterdir())


def test_a_look_whether_a_file_can_be_written_leaves_it_alone(tmp_path):
    target = tmp_path / ("x" * 255)  # the longest name that file systems allow
    atomic.check_writable(target)
    assert not list(tmp_path.iterdir())
    target.write_text("old")
    atomic.check_writable(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
