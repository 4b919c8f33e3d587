"""Files are whole at every moment."""

from pathlib import Path

import pytest

from lfl.report.files import write_file


def test_text_and_bytes_replace_what_was_there(tmp_path: Path) -> None:
    path = write_file(tmp_path / "new" / "a.txt", "é")
    assert write_file(path, b"b") == path
    assert [file.name for file in path.parent.iterdir()] == ["a.txt"]
    assert path.read_bytes() == b"b"


def test_an_earlier_file_stays_where_writing_fails(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", "kept")
    with pytest.raises(UnicodeEncodeError):
        write_file(path, "\ud800")
    assert path.read_text() == "kept"
    assert len(list(tmp_path.iterdir())) == 1
