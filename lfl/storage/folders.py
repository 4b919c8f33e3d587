"""Run folders, and the names of what is in them. A run never writes into another run's, it takes the next free one.

Nothing heavy is imported here: commands that only start runs need it, too.
"""

import errno
import os
import re
from pathlib import Path

CONFIG_FILE = "config.yaml"  # the command line's
HPARAMS_FILE = "hparams.yaml"  # in its place where a run was made from Python
METRICS_FILE = "metrics.csv"
TIMING_FILE = "timing.csv"
PARTITION_FILE = "partition.pt"


def new_run_folder(root: Path, prefix: str = "run") -> Path:
    """Makes the folder ``root/run_000``, or the one after the highest number there, and returns its path.

    Two processes never get the same folder.

    Raises:
        OSError: the folder cannot be made; the message names it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        pattern = re.compile(re.escape(prefix) + r"_\d+")
        taken = [run_number(entry.name) for entry in root.iterdir() if pattern.fullmatch(entry.name)]
        number = max(taken, default=-1) + 1
        while True:
            folder = root / f"{prefix}_{number:03d}"
            try:
                os.mkdir(folder)  # fails if another process was faster: no lock is needed
            except FileExistsError:
                number += 1
            else:
                return folder
    except OSError as error:
        message = f"Cannot make a run folder in {root}: {error.strerror}. Choose a folder that you may write to."
        raise OSError(error.errno, message) from error


def check_writable(root: Path) -> None:
    """Checks, before any work and without making anything, that a run folder can be made in ``root``.

    Raises:
        OSError: it cannot be made; the message names the folder.
    """
    nearest = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "no permission to write" if nearest.is_dir() else f"{nearest} is a file"
        message = f"Cannot make a run folder in {root}: {reason}. Choose a folder that you may write to."
        raise OSError(errno.EACCES, message)


def run_number(name: str) -> int:
    """The number at the end of a run folder's name; -1 if there is none."""
    digits = re.search(r"\d+$", name)
    return int(digits[0]) if digits else -1
