"""Checkpoint files and run folders: written whole or not at all, read with one clear error or not at all.

A checkpoint is a dictionary of tensors, numbers, strings, lists and dictionaries, as ``torch.load(weights_only=True)``
reads it. A run never writes into another run's folder: it takes the next free one.
"""

import codecs
import errno
import os
import re
import shutil
import zipfile
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from lfl.version import __version__

FORMAT_VERSION = 4
"""Raised by one when a checkpoint changes so that older code would misread it."""

_FORMAT_KEY = "lfl_format_version"
_WRITER_KEY = "lfl_version"
_FIRST_WRITER = "0.1.0"  # whose checkpoints, of formats 1 to 3, do not say who wrote them
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)

# ``torch.load(weights_only=True)`` takes these by itself, but for torch 2.4 and 2.5.
torch.serialization.add_safe_globals([bytes, codecs.encode, complex, set])


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; one line that names the file, what it is, and what to do."""


def save_atomically(state: dict[str, Any], path: Path) -> None:
    """Writes ``state`` to ``path`` so that a reader finds the old file or the whole new one, even after a crash.

    The data goes to a temporary file in the same folder, is flushed to the disk, and takes the name in one step. If
    anything fails, the temporary file is removed and the old checkpoint stays. What a killed process left behind is
    removed by the next save to the same path.

    Args:
        state: what to save; missing folders above ``path`` are made.
        path: the checkpoint file.

    Raises:
        TypeError: ``state`` holds an object that could not be loaded again.
        OSError: the file cannot be written; for a full disk the message says how much space there is.
    """
    _check_loadable(state, "state")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        _write_and_replace({**state, _FORMAT_KEY: FORMAT_VERSION, _WRITER_KEY: __version__}, path)
    except OSError as error:
        raise write_error(error, path) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The dictionary that ``save_atomically`` wrote to ``path``, its tensors on the CPU.

    Raises:
        CheckpointError: the file is missing, damaged, something else, or of another format.
    """
    _check_archive(path)
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise CheckpointError(f"{path} is not a checkpoint of lfl: it cannot be loaded ({reason}).") from error
    if not isinstance(state, dict) or not isinstance(state.get(_FORMAT_KEY), int):
        raise CheckpointError(
            f"{path} is not a checkpoint of lfl but {_describe(state)}. "
            "A run continues only from its own checkpoints; load weights into the model with `load_state_dict`."
        )
    found, writer = state.pop(_FORMAT_KEY), state.pop(_WRITER_KEY, _FIRST_WRITER)
    if found != FORMAT_VERSION:
        advice = "Upgrade lfl" if found > FORMAT_VERSION else f"Go on with lfl {writer}, or start the run again"
        raise CheckpointError(
            f"{path} was written by lfl {writer} in checkpoint format {found}; lfl {__version__} reads format "
            f"{FORMAT_VERSION}. {advice}."
        )
    return state


def find_last(root: Path) -> Path:
    """The ``last.ckpt`` written most recently by a run in ``root`` or one folder below; what ``ckpt_path: last`` means.

    Of checkpoints with the same time the one with the higher run number counts as the last.

    Raises:
        CheckpointError: there is none.
    """
    found = []
    for pattern in ("*/checkpoints/last.ckpt", "*/*/checkpoints/last.ckpt"):
        for path in root.glob(pattern):
            with suppress(FileNotFoundError):  # removed meanwhile by another process
                found.append((path.stat().st_mtime_ns, _run_number(path.parts[-3]), str(path), path))
    if not found:
        raise CheckpointError(
            f"There is no last checkpoint: no run folder in {root} has checkpoints/last.ckpt. "
            "Give the path of a checkpoint file, or the folder that holds the runs."
        )
    return max(found)[-1]


def new_run_folder(root: Path, prefix: str = "run") -> Path:
    """Makes and returns ``root/run_000``, or the number after the highest one there; no two processes get the same.

    Raises:
        OSError: the folder cannot be made; the message names it.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        pattern = re.compile(re.escape(prefix) + r"_\d+")
        taken = [_run_number(entry.name) for entry in root.iterdir() if pattern.fullmatch(entry.name)]
        number = max(taken, default=-1) + 1
        while True:
            folder = root / f"{prefix}_{number:03d}"
            try:
                os.mkdir(folder)
            except FileExistsError:
                number += 1
            else:
                return folder
    except OSError as error:
        message = f"Cannot make a run folder in {root}: {error.strerror}. Choose a folder that you may write to."
        raise OSError(error.errno, message) from error


def check_writable(root: Path) -> None:
    """Says early whether a run folder can be made in ``root``, and makes nothing.

    Raises:
        OSError: it cannot; the message names the folder.
    """
    nearest = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "no permission to write" if nearest.is_dir() else f"{nearest} is a file"
        message = f"Cannot make a run folder in {root}: {reason}. Choose a folder that you may write to."
        raise OSError(errno.EACCES, message)


def write_error(error: OSError, path: Path) -> OSError:
    """The same kind of error, with a one-line message that names ``path`` and, for a full disk, the free space."""
    message = f"Cannot write {path}: {error.strerror or error}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free / 2**20
        message += f" {free:.1f} MiB are free in {path.parent}; make room or choose another folder."
    return OSError(error.errno, message)


def sync_folder(folder: Path) -> None:
    """Flushes the names in ``folder`` to the disk: a new file's data may be there before its name is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Writer:
    """A raw file for ``torch.save`` that remembers its own error: torch reports a full disk as a bare RuntimeError."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.error = error
            raise
        return size

    def flush(self) -> None:
        """Nothing is buffered here."""


def _write_and_replace(state: dict[str, Any], path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with FileIO(temporary, "w") as file:
            writer = _Writer(file)
            try:
                torch.save(state, cast(IO[bytes], writer))
            except Exception as error:
                if writer.error is not None:
                    raise writer.error from error
                raise
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _remove_stale(path: Path) -> None:
    """Removes temporary files of ``path`` whose process no longer lives."""
    pattern = re.compile(re.escape(f".{path.name}.") + r"(\d+)\.tmp")
    for entry in path.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match and not _is_alive(int(match[1])):
            entry.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's process
        return True
    return True


def _check_loadable(value: Any, where: str) -> None:
    """Exact types, since ``numpy.float64`` is a ``float`` and yet no number to ``torch.load(weights_only=True)``."""
    if isinstance(value, Tensor) or type(value) in _PLAIN:
        return
    if isinstance(value, dict) and type(value).__name__ in ("dict", "OrderedDict"):
        for key, item in value.items():
            _check_loadable(key, f"a key of {where}")
            _check_loadable(item, f"{where}[{key!r}]")
    elif type(value) in (list, tuple, set):
        for position, item in enumerate(value):
            _check_loadable(item, f"{where}[{position}]")
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{where} is a {kind}, which a checkpoint cannot hold: "
            "convert it to tensors, numbers, strings, lists or dictionaries."
        )


def _check_archive(path: Path) -> None:
    """Raises for a file that is not an undamaged zip archive; torch itself does not compare the checksums."""
    remedy = "Take an earlier checkpoint."
    try:
        with open(path, "rb") as file:
            start = file.read(4)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no checkpoint {path}. Give the path of an existing file.") from error
    except IsADirectoryError as error:
        raise CheckpointError(f"{path} is a folder. Give the path of a checkpoint file in it.") from error
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # zipfile raises five types for damaged archives
        if not b"PK\x03\x04".startswith(start):
            raise CheckpointError(
                f"{path} is not a checkpoint of lfl: it is no torch archive. Give the path of a checkpoint file."
            ) from error
        what = "damaged or truncated" if start else "empty"
        raise CheckpointError(f"The checkpoint {path} is {what}. {remedy}") from error
    if damaged is not None:
        raise CheckpointError(f"The checkpoint {path} is damaged in its part {damaged}. {remedy}")


def _describe(state: Any) -> str:
    """What a foreign torch file seems to be."""
    if not isinstance(state, dict):
        return f"a torch file that holds a {type(state).__name__}"
    if "pytorch-lightning_version" in state:
        return "a checkpoint of lightning.Trainer"
    if state and all(isinstance(value, Tensor) for value in state.values()):
        return "a state_dict (tensors by name)"
    return f"a torch file with the keys {', '.join(map(str, list(state)[:5])) or '(none)'}"


def _run_number(name: str) -> int:
    """The number at the end of a run folder's name, or -1."""
    digits = re.search(r"\d+$", name)
    return int(digits[0]) if digits else -1
