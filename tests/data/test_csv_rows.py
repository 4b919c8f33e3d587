"""Rows of CSV files without a header."""

from pathlib import Path

import pytest

from lfl.data.csv_rows import rows_of


def test_rows_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes('"1","a ""b"", c"\n2,"two\nlines"\n3,\xe9\n'.encode("latin-1"))
    assert list(rows_of(path, ("n", "text"), "latin-1")) == [
        (1, ["1", 'a "b", c']),
        (2, ["2", "two\nlines"]),
        (3, ["3", "é"]),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1,a\n2\n", r"Row 2 of '.*x\.csv' has 1 columns, not 2 columns \(n, text\)"),
        (b"1,a\n2,\xe9\n", r"'.*x\.csv' is damaged behind row 0: .*codec can't decode"),
        (b"", r"'.*x\.csv' is empty: it must have rows of 2 columns \(n, text\)"),
        (b"1," + b"a" * 200_000, r"'.*x\.csv' is damaged behind row 0: field larger than field limit"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(rows_of(path, ("n", "text"), "utf-8"))
