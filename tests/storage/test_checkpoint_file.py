"""Checkpoint files: whole or not there, checked when they are read, and found again."""

import builtins
import errno
import os
import subprocess
import sys
import zipfile
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
import torch

import lfl
from lfl.storage.checkpoint_file import (
    FORMAT_VERSION,
    CheckpointError,
    find_newest,
    load_checkpoint,
    save_atomically,
)

FULL = OSError(errno.ENOSPC, "No space left on device")


def raiser(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run_000" / "checkpoints" / "last.ckpt"


@pytest.fixture
def saved(path):
    save_atomically({"round": 1, "server": torch.arange(3.0)}, path)
    return path


def names(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def assert_is_round(path, number):
    assert load_checkpoint(path)["round"] == number
    assert names(path) == ["last.ckpt"]


def test_what_was_saved_is_loaded(path):
    state = {
        "round": 3,
        "x": torch.tensor([0.1, -0.0]),
        "nested": {"a": [1, 2.5, None, True], 7: ("s", b"b", b"", 1j, {2})},
    }
    save_atomically(state, path)
    loaded = load_checkpoint(path)
    assert loaded.keys() == state.keys()
    assert torch.load(path, weights_only=True)["lfl_version"] == lfl.__version__
    assert torch.equal(loaded["x"], state["x"])
    assert loaded["nested"] == state["nested"]


def test_other_readers_can_load_it_too(saved):
    """LightningCLI looks into the file with ``weights_only=True`` before the trainer does."""
    assert torch.load(saved, weights_only=True)["round"] == 1


def test_saving_again_replaces(saved):
    save_atomically({"round": 2}, saved)
    assert_is_round(saved, 2)


class Color(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, r"state\['v'\]\['a'\]\[1\] is a builtins.object, which a checkpoint cannot hold"),
        (np.array([None]), r"state\['v'\] is a numpy array of object"),
        (Color.RED, r"state\['v'\] is a .*Color"),
        ({Color.RED: 1}, r"a key of state\['v'\] is a .*Color"),
        (len, r"state\['v'\] is a builtins.builtin_function_or_method"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(saved, value, message):
    with pytest.raises(TypeError, match=message):
        save_atomically({"round": 2, "v": value}, saved)
    assert_is_round(saved, 1)


@pytest.mark.parametrize("step", ["os.fsync", "os.replace", "torch.save"])
def test_a_failed_save_keeps_the_old_checkpoint(saved, step, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(step, raiser(FULL))
        with pytest.raises(OSError, match=r"Cannot write .*last.ckpt: No space left on device\. [\d.]+ MiB") as info:
            save_atomically({"round": 2}, saved)
    assert info.value.errno == errno.ENOSPC
    assert "\n" not in str(info.value)
    assert_is_round(saved, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("cannot write")])
def test_other_failures_pass_through(saved, error, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", raiser(error))
        with pytest.raises(type(error)):
            save_atomically({"round": 2}, saved)
    assert_is_round(saved, 1)


def test_a_full_disk_is_named(tmp_path):
    """A real one of 1 MiB, where this user may mount one."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        path = tmp_path / "last.ckpt"
        save_atomically({"round": 1}, path)
        with pytest.raises(OSError, match=r"Cannot write .*last.ckpt: No space left on device\. [01]\.\d MiB are free"):
            save_atomically({"round": 2, "x": torch.zeros(10**6)}, path)
        assert_is_round(path, 1)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_temporary_files_of_dead_processes_are_removed(saved):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    kept = {f".last.ckpt.{os.getppid()}.tmp", ".last.ckpt.x.tmp", f".other.ckpt.{dead.pid}.tmp"}
    for name in kept | {f".last.ckpt.{dead.pid}.tmp", f".last.ckpt.{10**30}.tmp"}:
        (saved.parent / name).write_bytes(b"half a checkpoint")
    assert load_checkpoint(saved)["round"] == 1
    save_atomically({"round": 2}, saved)
    assert set(names(saved)) == kept | {"last.ckpt"}


def test_missing_and_unreadable_files_are_named(saved, monkeypatch):
    with pytest.raises(CheckpointError, match=r"There is no checkpoint .*no.ckpt. Give the path of an existing file"):
        load_checkpoint(saved.parent / "no.ckpt")
    with pytest.raises(CheckpointError, match=r"checkpoints is a folder"):
        load_checkpoint(saved.parent)
    monkeypatch.setattr(builtins, "open", raiser(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(CheckpointError, match=r"checkpoint .*last.ckpt cannot be read: Permission denied"):
        load_checkpoint(saved)


@pytest.mark.parametrize("keep", [0, 1, 3, 20, 0.5, 0.99])
def test_truncated_files_are_named(saved, keep):
    data = saved.read_bytes()
    saved.write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
    with pytest.raises(CheckpointError, match=r"checkpoint .*last.ckpt is (damaged or truncated|empty)\. Take an earl"):
        load_checkpoint(saved)


def test_any_damaged_byte_of_the_contents_is_found(saved):
    """One bit of a tensor: torch itself would load it."""
    data = bytearray(saved.read_bytes())
    data[data.index(torch.arange(3.0).numpy().tobytes()) + 5] ^= 1
    saved.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"last.ckpt is damaged in its part .*data/0\. Take an earlier"):
        load_checkpoint(saved)


def test_damage_anywhere_gives_one_kind_of_error(saved):
    """Or none, where the byte means nothing (padding)."""
    data, messages = saved.read_bytes(), []
    for place in range(0, len(data), 23):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        saved.write_bytes(damaged)
        try:
            state = load_checkpoint(saved)
        except CheckpointError as error:
            messages.append(str(error))
        else:
            assert torch.equal(state["server"], torch.arange(3.0))
    assert len(messages) > 10
    assert all(str(saved) in message and "\n" not in message for message in messages)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (
            {"w": torch.ones(2)},
            r"is not a checkpoint of lfl but a state_dict \(tensors by name\)\. .*`load_state_dict`",
        ),
        ({"pytorch-lightning_version": "2.6", "epoch": 1}, "is not a checkpoint of lfl but a checkpoint of lightning"),
        ({"a": 1, "b": 2}, "is not a checkpoint of lfl but a torch file with the keys a, b"),
        ({"lfl_format_version": "new"}, "is not a checkpoint of lfl but a torch file with the keys lfl_format"),
        (torch.ones(2), "is not a checkpoint of lfl but a torch file that holds a Tensor"),
        ({"a": Path("x")}, "is not a checkpoint of lfl: it cannot be loaded"),
        (
            {"lfl_format_version": 99, "lfl_version": "9.1"},
            f"was written by lfl 9.1 in checkpoint format 99; lfl {lfl.__version__} reads format {FORMAT_VERSION}. "
            "Upgrade lfl.",
        ),
        (
            {"lfl_format_version": 3, "round": 1},
            f"was written by lfl 0.1.0 in checkpoint format 3; lfl {lfl.__version__} reads format {FORMAT_VERSION}. "
            "Go on with lfl 0.1.0, or start the run again.",
        ),
    ],
)
def test_foreign_and_newer_files_are_named(tmp_path, contents, message):
    path = tmp_path / "x.ckpt"
    torch.save(contents, path)
    with pytest.raises(CheckpointError, match=r"x\.ckpt " + message) as info:
        load_checkpoint(path)
    assert "\n" not in str(info.value)


def test_files_of_other_programs_are_named(tmp_path):
    path = tmp_path / "x.ckpt"
    path.write_text("a: 1\n")
    with pytest.raises(CheckpointError, match=r"x.ckpt is not a checkpoint of lfl: it is no torch archive"):
        load_checkpoint(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(CheckpointError, match=r"x.ckpt is not a checkpoint of lfl: it cannot be loaded"):
        load_checkpoint(path)


def touch(path, seconds):
    path.parent.mkdir(parents=True)
    path.touch()
    os.utime(path, (seconds, seconds))
    return path


def test_last_is_the_newest_in_two_levels(tmp_path):
    newest = touch(tmp_path / "sweep/run_000/checkpoints/last.ckpt", 30)
    touch(tmp_path / "run_005/checkpoints/last.ckpt", 20)
    touch(tmp_path / "a/b/run_009/checkpoints/last.ckpt", 99)
    assert find_newest(tmp_path) == newest


def test_of_equally_old_ones_the_higher_run_number_is_last(tmp_path):
    for name in ("run_2", "run_10", "run_9"):
        touch(tmp_path / name / "checkpoints/last.ckpt", 20)
    assert find_newest(tmp_path).parts[-3] == "run_10"


@pytest.mark.parametrize("root", [".", "nowhere"])
def test_no_last_checkpoint_names_the_root(tmp_path, root):
    (tmp_path / "run_000" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=f"There is no last checkpoint: no run folder in {tmp_path / root} has"):
        find_newest(tmp_path / root)


def test_systems_that_open_no_folders(path, monkeypatch):
    """Windows: names are written with the files."""
    real = os.open

    def open_file(name, *args, **kwargs):
        if Path(name).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(name, *args, **kwargs)

    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.setattr(os, "open", open_file)
    save_atomically({"round": 1}, path)
    save_atomically({"round": 2}, path)
    assert_is_round(path, 2)


def test_file_systems_that_flush_no_folders(path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    save_atomically({"round": 1}, path)
    assert_is_round(path, 1)


def test_no_process_is_asked_by_a_signal_on_windows(saved, monkeypatch):
    """Signal 0 is Ctrl+C there: a temporary file is left alone for a day instead."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "kill", raiser(AssertionError("a process was signalled")))
    old, new = (saved.with_name(f".last.ckpt.{number}.tmp") for number in (10**6, 10**6 + 1))
    for temporary in (old, new):
        temporary.touch()
    os.utime(old, (1, 1))
    save_atomically({"round": 2}, saved)
    assert names(saved) == [new.name, "last.ckpt"]


def test_a_disk_quota_is_a_full_disk_where_there_is_one(saved, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raiser(OSError(errno.EDQUOT, "Disk quota exceeded")))
        with pytest.raises(OSError, match=r"Disk quota exceeded\. [\d.]+ MiB are free"):
            save_atomically({"round": 2}, saved)
