"""clients.csv: whole rows, exact numbers, and no row twice."""

from pathlib import Path

import pytest

from lfl.reporting.client_table import ClientTable, read_clients

ROWS = [(1, "personal", 0, 3, {"a": 0.1}), (1, "personal", 2, 1, {"a": 1 / 3})]
LATER = [(2, "new, too", 1, 4, {"b": float("inf")})]


def test_rows_and_columns(tmp_path: Path) -> None:
    table = ClientTable(tmp_path / "run" / "clients.csv")
    table.append(ROWS)
    table.append([])
    table.append(LATER)
    table.append([(3, "x", 0, 1, {"b": 2.0, "a": 1.0})])
    assert table.path.read_text() == (
        "round,scope,client,examples,a,b\n1,personal,0,3,0.1,\n1,personal,2,1,0.3333333333333333,\n"
        '2,"new, too",1,4,,inf\n3,x,0,1,1.0,2.0\n'
    )
    assert list(read_clients(table.path))[:3] == ROWS + LATER
    assert [path.name for path in table.path.parent.iterdir()] == ["clients.csv"]


def test_it_continues_a_run_up_to_a_round(tmp_path: Path) -> None:
    first, other = (ClientTable(tmp_path / name / "clients.csv") for name in ("first", "other"))
    other.continue_from(first.path, 1)
    assert not other.path.exists()
    first.append(ROWS + LATER)
    other.continue_from(first.path, 1)
    assert list(read_clients(other.path)) == ROWS
    assert other.path.read_text().startswith("round,scope,client,examples,a\n")  # no column that is empty yet
    other.continue_from(first.path, 2)  # a second callback of the same run
    assert list(read_clients(other.path)) == ROWS
    other.append(LATER)
    assert other.path.read_text() == first.path.read_text()


def test_a_file_that_cannot_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    table = ClientTable(tmp_path / "clients.csv")
    table.append(ROWS)
    before = table.path.read_text()
    monkeypatch.setattr("lfl.reporting.client_table.os.replace", fail)
    with pytest.raises(OSError, match=r"Cannot write .*clients.csv: Input/output error"):
        table.append(LATER)
    assert table.path.read_text() == before
    assert list(tmp_path.iterdir()) == [table.path]
