"""What is said where a file cannot be written. Nothing heavy is imported here: reports need it, too."""

import errno
import shutil
from pathlib import Path

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def write_error(error: OSError, path: Path) -> OSError:
    """An OSError with the same number, and one line that names ``path`` and, if the disk is full, the free space."""
    message = f"Cannot write {path}: {error.strerror or error}."
    if error.errno in _FULL:
        folder = next(folder for folder in (path.parent, *path.absolute().parents) if folder.exists())
        free = shutil.disk_usage(folder).free / 2**20
        message += f" {free:.1f} MiB are free in {folder}; make room or choose another folder."
    return OSError(error.errno, message)
