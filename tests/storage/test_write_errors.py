"""Errors of writing name the file."""

import errno
import re
from pathlib import Path

from lfl.storage.write_errors import write_error


def test_a_full_disk_tells_its_room(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.csv"
    error = write_error(OSError(errno.ENOSPC, "No space left on device"), path)
    said = rf"Cannot write {re.escape(str(path))}: No space left on device\. [\d.]+ MiB are free in "
    assert error.errno == errno.ENOSPC
    assert re.match(f"{said}{re.escape(str(tmp_path))};", error.strerror or "")


def test_other_errors_are_one_sentence() -> None:
    assert write_error(OSError("odd"), Path("a.csv")).strerror == "Cannot write a.csv: odd."
