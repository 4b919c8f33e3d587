"""Files are whole at every moment, and errors of writing name the file."""

import errno
import re
from pathlib import Path

import pytest

from lfl.storage.files import told, write_error, write_file


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


def test_errors_name_the_file_and_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = write_file(tmp_path / "a.txt", "kept")
    with pytest.raises(OSError, match="Cannot write") as error:
        write_file(kept / "b.txt", "in a file, which is no folder")
    assert told(error.value).startswith(f"Cannot write {kept / 'b.txt'}: ")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="Cannot write") as error:
        write_file(kept, "new")
    assert told(error.value).startswith(f"Cannot write {kept}: No space left on device. ")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert kept.read_text() == "kept"
    assert told(PermissionError(errno.EACCES, "Permission denied", "b.csv")) == "b.csv: Permission denied"
    assert told(OSError()) == "OSError"


def test_a_full_disk_tells_its_room(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.csv"
    error = write_error(OSError(errno.ENOSPC, "No space left on device"), path)
    said = rf"Cannot write {re.escape(str(path))}: No space left on device\. [\d.]+ MiB are free in "
    assert error.errno == errno.ENOSPC
    assert re.match(f"{said}{re.escape(str(tmp_path))};", error.strerror or "")


def test_other_errors_are_one_sentence() -> None:
    assert write_error(OSError("odd"), Path("a.csv")).strerror == "Cannot write a.csv: odd."
