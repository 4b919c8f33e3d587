"""Run folders are numbered, never shared, and named where they cannot be made."""

import errno
import os
import threading

import pytest

from lfl.storage.folders import new_run_folder


def raiser(error):
    def fail(*args, **kwargs):
        raise error

    return fail


def test_run_folders_are_numbered(tmp_path):
    root = tmp_path / "runs"
    assert [new_run_folder(root).name for _ in range(2)] == ["run_000", "run_001"]
    (root / "run_0999").mkdir()
    (root / "run_x").mkdir()
    assert new_run_folder(root).name == "run_1000"
    assert new_run_folder(root, prefix="fedavg").name == "fedavg_000"


def test_deleting_a_run_does_not_free_a_number_below_the_highest(tmp_path):
    first, _ = new_run_folder(tmp_path), new_run_folder(tmp_path)
    first.rmdir()
    assert new_run_folder(tmp_path).name == "run_002"


def test_two_starters_never_share_a_folder(tmp_path, monkeypatch):
    """All listings are made before the first folder is: everyone wants run_000."""
    barrier, mkdir, folders = threading.Barrier(8), os.mkdir, []

    def mkdir_together(path, *args):
        if path.name == "run_000":
            barrier.wait(timeout=10)
        mkdir(path, *args)

    monkeypatch.setattr("lfl.storage.folders.os.mkdir", mkdir_together)
    threads = [threading.Thread(target=lambda: folders.append(new_run_folder(tmp_path).name)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(folders) == [f"run_{number:03d}" for number in range(8)]


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match=r"Cannot make a run folder in .*file: File exists\. Choose a folder"):
        new_run_folder(tmp_path / "file")
    monkeypatch.setattr(os, "mkdir", raiser(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(PermissionError, match=r"Cannot make a run folder in .*: Permission denied\. Choose"):
        new_run_folder(tmp_path)
