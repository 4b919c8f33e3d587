"""Rows in a file, with snapshots that later writes leave alone."""

import errno
import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lfl.storage import row_file
from lfl.storage.checkpoint_file import CheckpointError
from lfl.storage.row_file import RowFile, grown

HEADER = 64


def rows_of(*values, width=4):
    return torch.tensor(values, dtype=torch.uint8).unsqueeze(1).expand(-1, width).contiguous()


def saved_rows(snapshot, folder):
    return [row for part in RowFile.read_snapshot(snapshot, folder) for row in part[:, 0].tolist()]


@pytest.fixture
def file(tmp_path):
    file = RowFile(tmp_path / "a.rows", row_bytes=4)
    yield file
    file.close()


def test_rows_read_back_in_any_order(file):
    file.write(torch.tensor([1, 0, 2]), rows_of(11, 10, 12))
    assert file.read(torch.tensor([2, 0, 0])).tolist() == [[12] * 4, [10] * 4, [10] * 4]
    assert len(file) == 3


def test_rows_without_a_snapshot_are_overwritten_in_place(file):
    for value in range(20):
        file.write(torch.tensor([0, 1]), rows_of(value, value))
    assert file.path.stat().st_size == HEADER + 2 * 4


def test_snapshots_survive_later_writes(file, tmp_path):
    file.write(torch.tensor([0, 1]), rows_of(1, 2))
    first = file.snapshot("first")
    file.write(torch.tensor([1, 2]), rows_of(3, 4))
    second = file.snapshot("second")
    file.write(torch.tensor([0, 1, 2]), rows_of(5, 6, 7))
    assert saved_rows(first, tmp_path) == [1, 2]
    assert saved_rows(second, tmp_path) == [1, 3, 4]
    assert file.read(torch.tensor([0, 1, 2]))[:, 0].tolist() == [5, 6, 7]


def test_release_makes_room_for_later_writes(file):
    """Two live snapshots and the table: at most three versions of each of 100 rows, though 10 change a round."""
    file.write(torch.arange(100), rows_of(*range(100)))
    for number in range(200):
        file.snapshot(str(number))
        if number >= 2:
            file.release(str(number - 2))
        file.write((torch.arange(10) * 7 + number * 10) % 100, rows_of(*range(10)))
    assert file.path.stat().st_size <= HEADER + (100 + 2 * 10) * 4


def test_snapshot_flushes_only_what_was_written(file, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    file.write(torch.tensor([0]), rows_of(1))
    file.snapshot("a")
    file.snapshot("b")
    assert len(synced) == 1


def test_tags_are_checked(file):
    file.snapshot("a")
    with pytest.raises(ValueError, match=r"There is a snapshot 'a' of .*a.rows already"):
        file.snapshot("a")
    with pytest.raises(ValueError, match=r"There is no snapshot 'b' of .*a.rows; live ones: \['a'\]"):
        file.release("b")


def test_full_disk_changes_neither_table_nor_snapshots(file, tmp_path, monkeypatch):
    """The second of two rows fails: the table still gives the old ones, and the positions are used again."""
    file.write(torch.tensor([0, 1]), rows_of(1, 2))
    snapshot = file.snapshot("a")
    pwrite, calls = os.pwrite, []

    def fail_at_second(descriptor, data, offset):
        calls.append(offset)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail_at_second)
        with pytest.raises(OSError, match=r"Cannot write .*a.rows: No space left.* MiB are free in") as info:
            file.write(torch.tensor([0, 1, 2]), rows_of(7, 8, 9))
    assert info.value.errno == errno.ENOSPC
    assert file.read(torch.tensor([0, 1]))[:, 0].tolist() == [1, 2]
    file.write(torch.tensor([0, 1, 2]), rows_of(7, 8, 9))
    assert saved_rows(snapshot, tmp_path) == [1, 2]
    assert file.path.stat().st_size == HEADER + 5 * 4


def test_short_reads_and_writes_are_continued(file, monkeypatch):
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda f, data, offset: pwrite(f, data[:3], offset))
    monkeypatch.setattr(os, "preadv", lambda f, buffers, offset: preadv(f, [buffers[0][:3]], offset))
    file.write(torch.tensor([0]), torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8))
    assert file.read(torch.tensor([0])).tolist() == [[1, 2, 3, 4]]


def test_an_existing_file_is_left_alone(file):
    file.write(torch.tensor([0]), rows_of(1))
    with pytest.raises(FileExistsError):
        RowFile(file.path, row_bytes=4)
    assert file.read(torch.tensor([0])).tolist() == [[1] * 4]


def test_a_file_that_cannot_be_started_is_removed(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"Cannot write .*b.rows"):
        RowFile(tmp_path / "b.rows", row_bytes=4)
    assert not list(tmp_path.iterdir())


def test_a_closed_file_refuses(file):
    file.write(torch.tensor([0]), rows_of(1))
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(torch.tensor([0]))


def test_missing_truncated_and_foreign_files_are_named(file, tmp_path):
    file.write(torch.tensor([0, 1]), rows_of(1, 2))
    snapshot = file.snapshot("a")
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(CheckpointError, match=r"client rows .*other/a.rows is missing"):
        saved_rows(snapshot, other)
    foreign = RowFile(other / "a.rows", row_bytes=4)
    foreign.write(torch.tensor([0, 1]), rows_of(8, 9))
    with pytest.raises(CheckpointError, match=r"other/a.rows is not the one of this checkpoint"):
        saved_rows(snapshot, other)
    os.truncate(file.path, HEADER + 7)
    with pytest.raises(CheckpointError, match=r"a.rows is truncated: it has 71 bytes of at least 72"):
        saved_rows(snapshot, tmp_path)


def test_growing_keeps_the_values_and_at_least_doubles():
    values = torch.arange(3)
    assert grown(values, 3, fill=-1) is values
    assert grown(values, 4, fill=-1).tolist() == [0, 1, 2, -1, -1, -1]


class RowFileAgainstDict(RuleBasedStateMachine):
    """Any order of writes, snapshots and releases gives what lists of values give, in a file that stays small."""

    snapshots = Bundle("snapshots")

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.file = RowFile(self.folder / "a.rows", row_bytes=3)
        self.table: list[int] = []
        self.saved: dict[str, tuple[list[int], dict]] = {}
        self.most_live = 0
        self.count = 0

    @rule(changed=st.sets(st.integers(0, 5)), added=st.integers(0, 2), value=st.integers(0, 255))
    def write(self, changed, added, value):
        rows = [r for r in changed if r < len(self.table)] + [len(self.table) + i for i in range(added)]
        values = [(value + r) % 256 for r in rows]
        self.file.write(torch.tensor(rows, dtype=torch.long), rows_of(*values, width=3))
        self.table += [0] * added
        for row, new in zip(rows, values, strict=True):
            self.table[row] = new

    @rule(target=snapshots)
    def snapshot(self):
        self.count += 1
        tag = str(self.count)
        self.saved[tag] = (list(self.table), self.file.snapshot(tag))
        self.most_live = max(self.most_live, len(self.saved))
        return tag

    @rule(tag=consumes(snapshots))
    def release(self, tag):
        self.file.release(tag)
        del self.saved[tag]

    @invariant()
    def everything_reads_back(self):
        assert self.file.read(torch.arange(len(self.table)))[:, 2].tolist() == self.table
        for values, snapshot in self.saved.values():
            assert saved_rows(snapshot, self.folder) == values

    @invariant()
    def file_is_bounded(self):
        assert self.file.path.stat().st_size <= HEADER + (self.most_live + 1) * len(self.table) * 3

    def teardown(self):
        self.file.close()
        self.file.path.unlink()
        self.folder.rmdir()


RowFileAgainstDict.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRowFileAgainstDict = RowFileAgainstDict.TestCase


@pytest.mark.parametrize("missing", [["pwrite", "preadv", "pread"], ["preadv"], ["pwrite"]])
def test_systems_without_positioned_calls(tmp_path, monkeypatch, missing):
    """Windows has none of them, older macOS no ``preadv``: the same file, and the same rows."""
    for name in missing:
        monkeypatch.delattr(os, name)
    file = RowFile(tmp_path / "a.rows", row_bytes=4)
    file.write(torch.tensor([0, 1]), rows_of(1, 2))
    saved = file.snapshot("first")
    file.write(torch.tensor([1, 2]), rows_of(3, 4))
    assert file.read(torch.tensor([2, 0, 1]))[:, 0].tolist() == [4, 1, 3]
    assert saved_rows(saved, tmp_path) == [1, 2]
    file.close()
    with pytest.raises(CheckpointError, match="not the one of this checkpoint"):
        saved_rows({**saved, "token": "x"}, tmp_path)
    os.truncate(tmp_path / "a.rows", HEADER + 2)
    with pytest.raises(CheckpointError, match="is truncated"):
        saved_rows(saved, tmp_path)


def test_rows_are_bytes_on_windows_too(tmp_path, monkeypatch):
    """There, files are opened as text unless a flag says otherwise."""
    opened, real = [], os.open

    def watched(path, flags, *mode):
        opened.append(flags)
        return real(path, flags & ~(1 << 30), *mode)

    monkeypatch.setattr(row_file, "_BINARY", 1 << 30)
    monkeypatch.setattr(os, "open", watched)
    monkeypatch.delattr(os, "O_DIRECTORY")
    file = RowFile(tmp_path / "a.rows", row_bytes=4)
    file.write(torch.tensor([0]), rows_of(10))
    assert saved_rows(file.snapshot("first"), tmp_path) == [10]
    file.close()
    assert [flags >> 30 for flags in opened] == [1, 1]
