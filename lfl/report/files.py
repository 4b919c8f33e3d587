"""Files that are whole at every moment."""

from __future__ import annotations

import os
from pathlib import Path


def write_file(path: Path, content: bytes | str) -> Path:
    """Write a file beside the place and rename it; returns the path.

    Raises:
        OSError: it cannot be written; an earlier file is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path
