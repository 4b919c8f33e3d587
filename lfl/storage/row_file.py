"""A file of rows of equal size, with snapshots that later writes do not change.

Rows are numbered 0, 1, 2, ...; a table in memory gives the position of each row in the file. A snapshot is a copy of
the table. A position that a snapshot refers to is never overwritten: the row's next version is written to another
position, and the table is changed. A position is free again once neither the table nor a snapshot refers to it.
"""

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lfl.storage.checkpoint_file import CheckpointError, sync_folder
from lfl.storage.files import write_error

_HEADER_BYTES = 64
_BINARY = getattr(os, "O_BINARY", 0)  # on Windows only, where newlines would otherwise be translated
_CHUNK_BYTES = 2**26


class RowFile:
    """A new file of rows, read and written by position.

    Rows are read with ``pread`` and written with ``pwrite``, and never mapped into memory: the file's pages then do not
    count as this process's memory, and a full disk raises ``OSError``, where a mapping would end the process by SIGBUS.

    If the process is killed, every row of every snapshot that was not released is complete in the file. A write that
    fails changes neither the table nor any snapshot. But a row that no snapshot refers to is overwritten in place: if
    its write fails, it may be half old and half new.

    Args:
        path: the file; it must not exist, since a checkpoint may refer to an older one.
        row_bytes: bytes per row.

    Raises:
        FileExistsError: the file exists.
        OSError: the file cannot be made.

    Example:
        >>> import tempfile
        >>> file = RowFile(Path(tempfile.mkdtemp()) / "example.rows", row_bytes=2)
        >>> file.write(torch.tensor([0, 1]), torch.tensor([[1, 1], [2, 2]], dtype=torch.uint8))
        >>> saved = file.snapshot("round 1")
        >>> file.write(torch.tensor([1]), torch.tensor([[9, 9]], dtype=torch.uint8))
        >>> file.read(torch.tensor([0, 1])).tolist()
        [[1, 1], [9, 9]]
        >>> [rows.tolist() for rows in RowFile.read_snapshot(saved, file.path.parent)]
        [[[1, 1], [2, 2]]]
    """

    def __init__(self, path: Path, row_bytes: int) -> None:
        self.path = path
        self.row_bytes = row_bytes
        self._token = os.urandom(16).hex()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._count = 0  # number of rows
        self._positions = torch.full((1,), -1)  # the table: position by row; -1 is unused room
        # By position: how many of the table and the snapshots refer to it. 0 is free, 1 may be overwritten in place
        # (only the table refers to it), and more is held by a snapshot.
        self._references = torch.zeros(1, dtype=torch.long)
        self._end = 0  # positions from here on were never used
        self._free: list[int] = []  # positions before `_end` with 0 references
        self._snapshots: dict[str, Tensor] = {}  # positions by row, as the table was
        self._is_synced = False
        try:
            _write_all(self._descriptor, memoryview(_header(self._token)), 0)
            # Once, for the file's name; the data follows with each `sync`.
            sync_folder(path.parent)
        except OSError as error:
            self._close()
            path.unlink(missing_ok=True)
            raise write_error(error, path) from error

    def __len__(self) -> int:
        return self._count

    @property
    def tags(self) -> set[str]:
        """The tags of the snapshots that were not released."""
        return set(self._snapshots)

    def read(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Reads ``rows`` [C] (int64) as uint8 ``[C, row_bytes]``, into ``out`` if it is given."""
        assert not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < self._count
        if out is None:
            out = torch.empty((len(rows), self.row_bytes), dtype=torch.uint8)
        _read_rows(self._descriptor, self.path, self._positions[rows], out)
        return out

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Sets ``rows`` [C] (int64, no number twice) to the bytes ``values`` [C, row_bytes] (uint8, on the CPU).

        New rows continue the numbering: ``len(file)``, ``len(file) + 1``, ... in any order.

        Raises:
            OSError: the disk is full, or fails.
        """
        if not len(rows):
            return
        size = max(self._count, int(rows.max()) + 1)
        self._positions = grown(self._positions, size, fill=-1)
        before = self._positions[rows]
        assert self._count + int((before < 0).sum()) == size  # the new numbers leave no gap
        # New rows, and rows whose position a snapshot holds, are written to a fresh position; the others in place.
        is_fresh = (before < 0) | (self._references[before.clamp(min=0)] > 1)
        taken = self._take(int(is_fresh.sum()))
        after = before.masked_scatter(is_fresh, torch.tensor(taken, dtype=torch.long))
        # First the data, then the table: until all rows are in the file, nothing in memory refers to the new positions,
        # and a failed write only has to give them back.
        self._is_synced = False
        try:
            for position, value in zip(after.tolist(), values.numpy(), strict=True):
                _write_all(self._descriptor, memoryview(value), _HEADER_BYTES + position * self.row_bytes)
        except BaseException as error:
            self._free.extend(taken)
            if isinstance(error, OSError):
                raise write_error(error, self.path) from error
            raise
        self._references = grown(self._references, self._end, fill=0)
        self._references[before[is_fresh & (before >= 0)]] -= 1  # never to 0: a snapshot still holds the old version
        self._references[after[is_fresh]] = 1
        self._positions[rows] = after
        self._count = size

    def sync(self) -> None:
        """Flushes all rows to the disk."""
        if not self._is_synced:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise write_error(error, self.path) from error
            self._is_synced = True

    def snapshot(self, tag: str) -> dict[str, Any]:
        """Keeps all rows as they are now until ``release(tag)``; they are on the disk when this returns.

        Returns:
            What ``read_snapshot`` needs: the file's name without its folder, its token, the row size, and the
            position of each row (int64). It takes eight bytes per row, however long a row is.

        Raises:
            ValueError: ``tag`` names a live snapshot.
            OSError: the disk is full, or fails.
        """
        if tag in self._snapshots:
            raise ValueError(f"There is a snapshot {tag!r} of {self.path} already: release it, or use another tag.")
        # Before anybody writes a checkpoint that refers to the rows: after a power failure the checkpoint would
        # otherwise be there, and the rows would not.
        self.sync()
        positions = self._positions[: self._count].clone()
        self._references[positions] += 1
        self._snapshots[tag] = positions
        return {
            "file": self.path.name,
            "token": self._token,
            "row_bytes": self.row_bytes,
            "positions": positions.clone(),
        }

    def release(self, tag: str) -> None:
        """Forgets a snapshot, so that positions to which nothing else refers may be used again.

        Raises:
            ValueError: there is no such snapshot.
        """
        if tag not in self._snapshots:
            raise ValueError(f"There is no snapshot {tag!r} of {self.path}; live ones: {sorted(self._snapshots)}.")
        positions = self._snapshots.pop(tag)
        self._references[positions] -= 1
        self._free.extend(positions[self._references[positions] == 0].tolist())

    def close(self) -> None:
        """Closes the file; it stays on the disk."""
        self._close()
        # The number may be given to another file: a read or write after this must fail, not go there.
        self._descriptor = -1

    @staticmethod
    def read_snapshot(snapshot: dict[str, Any], folder: Path) -> Iterator[Tensor]:
        """Reads the rows of a snapshot in order, as tensors uint8 ``[n, row_bytes]`` of at most 64 MiB (or one row).

        The file in ``folder`` is only read; it may belong to a process that was killed or is still running.

        Raises:
            CheckpointError: the file is missing, too short, or not the file that the snapshot was taken of.
        """
        path = folder / snapshot["file"]
        row_bytes = int(snapshot["row_bytes"])
        positions: Tensor = snapshot["positions"]
        remedy = "Restore it beside its checkpoint, or take another checkpoint."
        try:
            descriptor = os.open(path, os.O_RDONLY | _BINARY)
        except OSError as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            raise CheckpointError(f"The checkpoint's file of client rows {path} {reason}. {remedy}") from error
        try:
            if _read_header(descriptor) != _header(snapshot["token"]):
                raise CheckpointError(f"The file of client rows {path} is not the one of this checkpoint. {remedy}")
            needed = _HEADER_BYTES + (int(positions.max()) + 1 if len(positions) else 0) * row_bytes
            size = os.fstat(descriptor).st_size
            if size < needed:
                raise CheckpointError(
                    f"The file of client rows {path} is truncated: it has {size} bytes of at least {needed}. {remedy}"
                )
            step = max(1, _CHUNK_BYTES // max(1, row_bytes))
            for start in range(0, len(positions), step):
                chunk = positions[start : start + step]
                rows = torch.empty((len(chunk), row_bytes), dtype=torch.uint8)
                _read_rows(descriptor, path, chunk, rows)
                yield rows
        finally:
            os.close(descriptor)

    def _take(self, count: int) -> list[int]:
        """Takes ``count`` positions to write to: free ones first, then new ones at the end of the file."""
        reused = min(count, len(self._free))
        taken = self._free[len(self._free) - reused :]
        del self._free[len(self._free) - reused :]
        taken.extend(range(self._end, self._end + count - reused))
        self._end += count - reused
        return taken


def grown(values: Tensor, size: int, fill: int) -> Tensor:
    """``values`` [n] if n >= ``size``, else a copy at least twice as long, filled up with ``fill``.

    Doubling makes the cost of growing constant per row, on average.
    """
    if len(values) >= size:
        return values
    longer = values.new_full((max(size, 2 * len(values)),), fill)
    longer[: len(values)] = values
    return longer


def _header(token: str) -> bytes:
    """The first bytes of a file; the token tells it from a file of the same name that another run made."""
    return f"lfl rows 1\n{token}\n".encode().ljust(_HEADER_BYTES, b"\0")


def _write_at(descriptor: int, data: memoryview, offset: int) -> int:
    """Writes from a position on, as many bytes as the system takes; returns their number."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # Windows: the same in two calls, by the one thread that uses the file
    return os.write(descriptor, data)


def _read_at(descriptor: int, target: memoryview, offset: int) -> int:
    """Reads from a position on, as many bytes as the system gives; returns their number."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [target], offset)  # straight into the tensor, without a copy
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, len(target))
    target[: len(data)] = data
    return len(data)


def _read_header(descriptor: int) -> bytes:
    header = bytearray(_HEADER_BYTES)
    return bytes(header[: _read_at(descriptor, memoryview(header), 0)])


def _write_all(descriptor: int, rest: memoryview, offset: int) -> None:
    while rest:  # the system may write less than it is given, such as up to the end of a full disk
        written = _write_at(descriptor, rest, offset)
        rest = rest[written:]
        offset += written


def _read_rows(descriptor: int, path: Path, positions: Tensor, out: Tensor) -> None:
    for position, row in zip(positions.tolist(), out.numpy(), strict=True):
        rest = memoryview(row)
        offset = _HEADER_BYTES + position * len(row)
        while rest:
            count = _read_at(descriptor, rest, offset)
            if count == 0:
                raise OSError(f"{path} ends inside row position {position}: it was truncated while in use.")
            rest = rest[count:]
            offset += count
