"""Numbered rows, and which client has which."""

from pathlib import Path

import pytest
import torch

from lfl.storage.row_file import RowFile
from lfl.storage.rows import ClientIndex, FileRows, MemoryRows, RowLayout, RowStorage

CPU = torch.device("cpu")
LAYOUT = RowLayout(3, torch.float64, 0.0)


@pytest.fixture(params=["memory", "file"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> RowStorage:
    if request.param == "memory":
        return MemoryRows(LAYOUT, home=CPU, device=CPU)
    return FileRows(RowFile(tmp_path / "a.rows", LAYOUT.row_bytes), LAYOUT, CPU)


def test_a_row_is_its_width_times_its_type() -> None:
    assert LAYOUT.row_bytes == 24
    assert str(RowLayout(2, torch.float16, 0.5)) == "width=2, dtype=torch.float16, fill=0.5"


def test_rows_are_numbered_by_their_first_write() -> None:
    index = ClientIndex(10)
    assert index.rows_of(torch.tensor([3, 4])).tolist() == [-1, -1]
    rows, new = index.plan(torch.tensor([7, 2]))
    assert (rows.tolist(), new.tolist()) == ([0, 1], [7, 2])
    assert len(index) == 0  # planned, not yet there
    index.add(new)
    rows, new = index.plan(torch.tensor([2, 9, 7, 0]))
    assert (rows.tolist(), new.tolist()) == ([1, 2, 0, 3], [9, 0])
    index.add(new)
    index.add(torch.tensor([], dtype=torch.int64))
    assert index.ids.tolist() == [7, 2, 9, 0]
    assert index.rows_of(torch.arange(10)).tolist() == [3, -1, 1, -1, -1, -1, -1, 0, -1, 2]


def test_what_is_written_is_read(rows: RowStorage) -> None:
    rows.write(torch.tensor([0, 1]), torch.tensor([[1.0, 2, 3], [4, 5, 6]]).double())
    rows.write(torch.tensor([2, 0]), torch.tensor([[7.0, 8, 9], [0, 0, 1]]).double())
    found = rows.read(torch.tensor([2, 0, 1, 2]))
    assert found.tolist() == [[7, 8, 9], [0, 0, 1], [4, 5, 6], [7, 8, 9]]
    found.fill_(5.0)
    assert rows.read(torch.tensor([1])).tolist() == [[4, 5, 6]]


def test_memory_grows_without_moving_what_is_there() -> None:
    """Chunks of 1 MiB at first: rows of 1 MiB are a chunk each, and one read may touch many."""
    rows = MemoryRows(RowLayout(2**17, torch.float64, 0.0), CPU, CPU)
    for number in range(5):
        rows.write(torch.tensor([number]), torch.full((1, 2**17), float(number)).double())
    assert rows.read(torch.tensor([4, 0, 3]))[:, -1].tolist() == [4.0, 0.0, 3.0]
    assert rows.snapshot("a", 4)["rows"][:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_snapshot_is_a_copy_in_memory_and_a_reference_in_a_file(rows: RowStorage) -> None:
    first = torch.tensor([[1.0, 2, 3]]).double()
    rows.write(torch.tensor([0]), first)
    state = rows.snapshot("a", 1)
    rows.write(torch.tensor([0]), 2 * first)
    if isinstance(rows, FileRows):
        (part,) = RowFile.read_snapshot(state, rows.file.path.parent)
        assert torch.equal(part.view(torch.float64), first)
    else:
        assert torch.equal(state["rows"], first)
