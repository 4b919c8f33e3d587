"""Files that are whole at every moment, and the words for those that cannot be written.

Nothing heavy is imported here: commands that train nothing need it, too.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def write_file(path: Path, content: bytes | str) -> Path:
    """Write a file beside the place, flush it to the disk and rename it; returns the path.

    Raises:
        OSError: it cannot be written; an earlier file is then as it was. The message names the file.
    """
    encoded = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(encoded)
        with beside.open("r+b") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):  # a folder that is none has no such file either
            beside.unlink(missing_ok=True)
        raise write_error(error, path) from error
    return path


def write_error(error: OSError, path: Path) -> OSError:
    """An OSError with the same number, and one line that names ``path`` and, if the disk is full, the free space."""
    message = f"Cannot write {path}: {error.strerror or error}."
    if error.errno in _FULL:
        folder = next(folder for folder in (path.parent, *path.absolute().parents) if folder.exists())
        free = shutil.disk_usage(folder).free / 2**20
        message += f" {free:.1f} MiB are free in {folder}; make room or choose another folder."
    return OSError(error.errno, message)


def told(error: OSError) -> str:
    """An error of a file in one line, without its number, but with the file's name where it has one."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename is not None else reason
