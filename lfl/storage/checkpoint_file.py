"""Checkpoint files.

A checkpoint is written completely or not at all, and is read completely or refused with one clear error. It is a
dictionary of tensors, numbers, strings, lists and dictionaries, as ``torch.load(weights_only=True)`` reads it; other
values are written as such (``lfl.storage.plain``).
"""

import codecs
import errno
import os
import re
import sys
import time
import zipfile
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, cast

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lfl.storage.files import write_error
from lfl.storage.folders import run_number
from lfl.storage.plain import from_plain, to_plain
from lfl.version import __version__

FORMAT_VERSION = 5
"""Increased by one when checkpoints change so that older code would misread them."""

_FORMAT_KEY = "lfl_format_version"
_WRITER_KEY = "lfl_version"
_STALE_SECONDS = 86400  # where nobody can be asked whether a process is alive
_FIRST_WRITER = "0.1.0"  # the version whose checkpoints, of formats 1 to 3, do not name their writer

# For torch 2.4 and 2.5; newer ones load these types with ``weights_only=True`` without being told.
torch.serialization.add_safe_globals([bytes, codecs.encode, complex, set])


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The message is one line: which file, what is wrong, what to do."""


def save_atomically(state: dict[str, Any], path: Path) -> None:
    """Writes ``state`` to ``path`` so that a reader finds the old file or the complete new one, even after a crash.

    The data is written to a temporary file in the same folder, flushed to the disk, and then renamed to ``path`` in
    one step. If anything fails, the temporary file is removed and the old checkpoint stays. The temporary file of a
    process that was killed is removed by the next save to the same path.

    Args:
        state: what to save.
        path: the checkpoint file; missing folders above it are made.

    Raises:
        TypeError: ``state`` holds an object that could not be loaded again.
        OSError: the file cannot be written; for a full disk the message says how much space there is.
    """
    plain = to_plain(state, "state")
    write_atomically({**plain, _FORMAT_KEY: FORMAT_VERSION, _WRITER_KEY: __version__}, path)


def write_atomically(content: dict[str, Any], path: Path) -> None:
    """Writes any torch file as ``save_atomically`` writes checkpoints, without saying that it is one.

    Raises:
        OSError: the file cannot be written; for a full disk the message says how much space there is.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        _write_and_replace(content, path)
    except OSError as error:
        raise write_error(error, path) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load the dictionary that ``save_atomically`` wrote to ``path``, with its tensors on the CPU.

    Raises:
        CheckpointError: the file is missing, damaged, not a checkpoint of lfl, or in another format.
    """
    _check_archive(path)
    try:
        # `weights_only`: a checkpoint from somebody else must not be able to run code.
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise CheckpointError(f"{path} is not a checkpoint of lfl: it cannot be loaded ({reason}).") from error
    if not isinstance(state, dict) or not isinstance(state.get(_FORMAT_KEY), int):
        raise CheckpointError(
            f"{path} is not a checkpoint of lfl but {_describe(state)}. "
            "A run continues only from its own checkpoints; load weights into the model with `load_state_dict`."
        )
    version = state.pop(_FORMAT_KEY)
    writer = state.pop(_WRITER_KEY, _FIRST_WRITER)
    if version != FORMAT_VERSION:
        advice = "Upgrade lfl" if version > FORMAT_VERSION else f"Go on with lfl {writer}, or start the run again"
        raise CheckpointError(
            f"{path} was written by lfl {writer} in checkpoint format {version}; lfl {__version__} reads format "
            f"{FORMAT_VERSION}. {advice}."
        )
    loaded: dict[str, Any] = from_plain(state)
    return loaded


def load_resumable(path: Path) -> dict[str, Any]:
    """Load a checkpoint that a run can go on from.

    Raises:
        CheckpointError: the file cannot be loaded, or holds weights only.
    """
    state = load_checkpoint(path)
    if state.get("weights_only"):
        raise CheckpointError(
            f"{path} was saved with `weights_only`: `lfl test` and `load_from_checkpoint` read it, but a run cannot go "
            "on from it."
        )
    return state


def load_weights(module: LightningModule, state: dict[str, Any], path: Path | None) -> None:
    """Load the weights of a checkpoint, for evaluation; raises CheckpointError if they are those of another model."""
    try:
        module.load_state_dict(state["state_dict"])
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n\t")[1:2]).rstrip(". ")
        raise CheckpointError(
            f"The weights of {path} do not fit {type(module).__name__}: {reason}. Use the run's own config.yaml."
        ) from error


def find_newest(root: Path, name: str = "last") -> Path:
    """The newest ``last.ckpt`` (or ``best.ckpt``) of the runs in ``root`` or one folder below it.

    This is the meaning of ``ckpt_path: last``. Of checkpoints with the same time, the one with the highest run number
    counts as the newest.

    Raises:
        CheckpointError: there is none.
    """
    candidates = []
    for pattern in (f"*/checkpoints/{name}.ckpt", f"*/*/checkpoints/{name}.ckpt"):
        for path in root.glob(pattern):
            with suppress(FileNotFoundError):  # removed meanwhile by another process
                candidates.append((path.stat().st_mtime_ns, run_number(path.parts[-3]), str(path), path))
    if not candidates:
        hint = " (`checkpoint.monitor` makes one)" if name == "best" else ""
        raise CheckpointError(
            f"There is no {name} checkpoint: no run folder in {root} has checkpoints/{name}.ckpt{hint}. "
            "Give the path of a checkpoint file, or the folder that holds the runs."
        )
    return max(candidates)[-1]


def run_folder_of(path: Path, state: dict[str, Any]) -> Path:
    """The folder of the run that a checkpoint is from: the one that it lies in or, if it lies elsewhere, its own.

    Args:
        path: the checkpoint file.
        state: what it holds.
    """
    around = path.resolve().parent.parent
    is_there = path.resolve().parent.name == "checkpoints" or "folder" not in state
    return around if is_there else Path(state["folder"])


def sync_folder(folder: Path) -> None:
    """Flushes the file names in ``folder`` to the disk.

    ``fsync`` of a file flushes its data only: after a power failure, the name of a new file could be missing.
    """
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders, and writes their names with the files
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot flush a folder
            raise
    finally:
        os.close(descriptor)


class _Writer:
    """A raw file for ``torch.save`` that keeps its own error: torch reports a full disk as a bare RuntimeError."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:  # a raw file may take less than it is given, 2 GiB at most
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.error = error
            raise
        return size

    def flush(self) -> None:
        """Nothing is buffered here."""


def _write_and_replace(state: dict[str, Any], path: Path) -> None:
    # The order, and what a crash (of the process, or a power failure) leaves at `path` after each step:
    # 1. write the temporary file: the old checkpoint; half a temporary file lies beside it;
    # 2. flush it: the old checkpoint. Without this step the renamed file could be empty after a power failure, since
    #    the disk may store the new name before the data;
    # 3. rename it: the old checkpoint or the new one, each complete;
    # 4. flush the folder: the new checkpoint for certain. Only after this may the caller reuse the client rows that
    #    the old checkpoint referred to (`ClientStore.release`): until then the old one may still come back.
    # In the same folder, since a file can only be renamed within one file system.
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
    except BaseException:  # a KeyboardInterrupt too
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _remove_stale(path: Path) -> None:
    """Removes temporary files of ``path`` that processes left which have ended."""
    pattern = re.compile(re.escape(f".{path.name}.") + r"(\d+)\.tmp")
    for entry in path.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match and _is_left(entry, int(match[1])):
            entry.unlink(missing_ok=True)


def _is_left(entry: Path, process: int) -> bool:
    """Whether the process that wrote a temporary file has ended."""
    if sys.platform == "win32":  # there, signal 0 is Ctrl+C, and ends the process
        return time.time() - entry.stat().st_mtime > _STALE_SECONDS
    return not _is_alive(process)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 is not sent: it only tells whether the process exists
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's process
        return True
    return True


def _check_archive(path: Path) -> None:
    """Raises CheckpointError unless the file is an undamaged zip archive; torch itself does not compare checksums."""
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
        # A file that begins as an archive does, or is too short to tell, was probably a checkpoint once.
        if not b"PK\x03\x04".startswith(start):
            raise CheckpointError(
                f"{path} is not a checkpoint of lfl: it is no torch archive. Give the path of a checkpoint file."
            ) from error
        what = "damaged or truncated" if start else "empty"
        raise CheckpointError(f"The checkpoint {path} is {what}. {remedy}") from error
    if damaged is not None:
        raise CheckpointError(f"The checkpoint {path} is damaged in its part {damaged}. {remedy}")


def _describe(state: Any) -> str:
    """A guess, in words, at what a torch file holds that is not a checkpoint of lfl."""
    if not isinstance(state, dict):
        return f"a torch file that holds a {type(state).__name__}"
    if "pytorch-lightning_version" in state:
        return "a checkpoint of lightning.Trainer"
    if state and all(isinstance(value, Tensor) for value in state.values()):
        return "a state_dict (tensors by name)"
    return f"a torch file with the keys {', '.join(map(str, list(state)[:5])) or '(none)'}"
