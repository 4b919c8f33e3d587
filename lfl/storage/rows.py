"""Rows of a slot, numbered 0, 1, 2, ..., in memory or in a file, and the row number of each client."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from lfl.storage.row_file import RowFile, grown

_CHUNK_BYTES = 2**28  # size of the largest chunk
_FIRST_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class RowLayout:
    """The layout of a slot's rows: their width, their type, and the value ``fill`` of a row that was never written."""

    width: int
    dtype: torch.dtype
    fill: float

    def __str__(self) -> str:
        return f"width={self.width}, dtype={self.dtype}, fill={self.fill}"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * self.dtype.itemsize


class ClientIndex:
    """The row number of each client: rows are numbered in the order in which they are first written."""

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self._rows = torch.empty(0, dtype=torch.long)  # row by client [N], -1 for none; made at the first write
        self._ids = torch.empty(0, dtype=torch.long)  # client by row
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> Tensor:
        """The client of each row, in the order of the rows."""
        return self._ids[: self._count]

    def rows_of(self, ids: Tensor) -> Tensor:
        """The row of each client ``ids`` [C]; -1 if it has none."""
        return self._rows[ids] if self._count else torch.full_like(ids, -1)

    def plan(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The rows for a write [C]: the client's row if it has one, else the next free one; and the clients without.

        Nothing is changed; ``add`` does that once the rows have been written.
        """
        rows = self.rows_of(ids)
        is_new = rows < 0
        new_ids = ids[is_new]
        if len(new_ids):
            rows[is_new] = torch.arange(self._count, self._count + len(new_ids))
        return rows, new_ids

    def add(self, ids: Tensor) -> None:
        """Gives the next rows to clients that have none."""
        if not len(ids):
            return
        if not self._count:
            self._rows = torch.full((self._num_clients,), -1)
        end = self._count + len(ids)
        self._ids = grown(self._ids, end, fill=-1)
        self._ids[self._count : end] = ids
        self._rows[ids] = torch.arange(self._count, end)
        self._count = end


class RowStorage(Protocol):
    """The place where the rows of a slot are kept."""

    def read(self, rows: Tensor) -> Tensor:
        """Reads ``rows`` [C] into a new tensor [C, width] on the store's device."""

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Sets ``rows`` [C] to ``values`` [C, width], which may be on any device."""

    def snapshot(self, tag: str, count: int) -> dict[str, Any]:
        """The first ``count`` rows, for a checkpoint."""


class MemoryRows(RowStorage):
    """Rows in memory, in chunks of at most 256 MiB (or one row), so that growing copies nothing.

    Args:
        layout: what a row looks like.
        home: the device whose memory keeps the rows.
        device: the device that ``read`` puts them on.
    """

    def __init__(self, layout: RowLayout, home: torch.device, device: torch.device) -> None:
        self._layout = layout
        self._home = home
        self._device = device
        # Pinned host memory is read and written by the GPU itself, while Python goes on.
        self._is_pinned = home.type == "cpu" and device.type == "cuda"
        self._chunks: list[Tensor] = []  # [rows, width] each
        self._starts: list[int] = []  # the number of each chunk's first row
        self._capacity = 0

    @override
    def read(self, rows: Tensor) -> Tensor:
        result = torch.empty((len(rows), self._layout.width), dtype=self._layout.dtype, device=self._device)
        for chunk, where, local in self._in_chunks(rows):
            if self._home.type == self._device.type:
                result.index_copy_(0, where.to(self._device), chunk.index_select(0, local.to(self._home)))
            else:
                # Row by row, straight out of the pinned chunk: selecting rows first would copy them into memory that
                # is not pinned. Nobody waits here: what the GPU does with `result` is queued behind the copies.
                for target, source in zip(where.tolist(), local.tolist(), strict=True):
                    result[target].copy_(chunk[source], non_blocking=self._is_pinned)
        return result

    @override
    def write(self, rows: Tensor, values: Tensor) -> None:
        self._grow(int(rows.max()) + 1)
        if self._home.type != "cpu":
            values = values.to(self._home)
        # The chunk may be the source of copies that `read` started and that are still under way: `values` from the
        # CPU would be written over it while the GPU reads.
        if self._is_pinned:
            torch.cuda.synchronize(self._device)
        for chunk, where, local in self._in_chunks(rows):
            if values.device.type == self._home.type:
                chunk.index_copy_(0, local.to(self._home), values.index_select(0, where.to(self._home)))
            else:
                for source, target in zip(where.tolist(), local.tolist(), strict=True):
                    chunk[target].copy_(values[source], non_blocking=self._is_pinned)
        # Wait for the copies: a snapshot reads the chunk on the CPU, which the GPU's queue does not hold back.
        if self._is_pinned:
            torch.cuda.synchronize(self._device)

    @override
    def snapshot(self, tag: str, count: int) -> dict[str, Any]:
        del tag
        used = [chunk[: max(0, count - start)] for chunk, start in zip(self._chunks, self._starts, strict=True)]
        return {"rows": torch.cat([rows.cpu() for rows in used])}

    def _in_chunks(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each chunk that holds some of ``rows``: the chunk, where in ``rows`` they are, and where in the chunk."""
        if len(self._chunks) == 1:
            yield self._chunks[0], torch.arange(len(rows)), rows
            return
        numbers = torch.bucketize(rows, torch.tensor(self._starts), right=True) - 1
        for number in sorted(set(numbers.tolist())):
            where = (numbers == number).nonzero().squeeze(1)
            yield self._chunks[number], where, rows[where] - self._starts[number]

    def _grow(self, size: int) -> None:
        """Adds chunks until there is room for ``size`` rows."""
        least, limit = (max(1, bytes // max(1, self._layout.row_bytes)) for bytes in (_FIRST_CHUNK_BYTES, _CHUNK_BYTES))
        while self._capacity < size:
            # Each chunk doubles the room, up to the limit: few clients take little memory, many take few chunks.
            count = min(limit, max(least, self._capacity, size - self._capacity))
            shape = (count, self._layout.width)
            chunk = torch.empty(shape, dtype=self._layout.dtype, device=self._home, pin_memory=self._is_pinned)
            self._chunks.append(chunk)
            self._starts.append(self._capacity)
            self._capacity += count


class FileRows(RowStorage):
    """Rows in a ``RowFile``; ``read`` puts them on ``device``."""

    def __init__(self, file: RowFile, layout: RowLayout, device: torch.device) -> None:
        self.file = file
        self._layout = layout
        self._device = device

    @override
    def read(self, rows: Tensor) -> Tensor:
        shape = (len(rows), self._layout.width)
        is_pinned = self._device.type == "cuda"
        result = torch.empty(shape, dtype=self._layout.dtype, pin_memory=is_pinned)
        self.file.read(rows, out=_as_bytes(result))
        # Without waiting: torch does not reuse the pinned memory of `result` before the copy has ended.
        return result.to(self._device, non_blocking=is_pinned)

    @override
    def write(self, rows: Tensor, values: Tensor) -> None:
        self.file.write(rows, _as_bytes(values.cpu().contiguous()))

    @override
    def snapshot(self, tag: str, count: int) -> dict[str, Any]:
        assert count == len(self.file)
        return self.file.snapshot(tag)


def _as_bytes(rows: Tensor) -> Tensor:
    """A view of ``rows`` [C, width] as bytes, uint8 [C, row_bytes]."""
    return rows.view(torch.uint8)
