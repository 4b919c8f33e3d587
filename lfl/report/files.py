"""Files that are whole at every moment."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from lfl.storage.write_errors import write_error


def write_file(path: Path, content: bytes | str) -> Path:
    """Write a file beside the place and rename it; returns the path.

    Raises:
        OSError: it cannot be written; an earlier file is then as it was. The message names the file.
    """
    encoded = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(encoded)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):  # a folder that is none has no such file either
            beside.unlink(missing_ok=True)
        raise write_error(error, path) from error
    return path


def told(error: OSError) -> str:
    """An error of a file in one line, without its number, but with the file's name where it has one."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename is not None else reason
