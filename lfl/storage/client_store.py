"""What clients keep between rounds: named slots with one row per client, in memory or in a file.

N clients never cost N rows: a row comes into being when it is first written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args
from urllib.parse import quote

import torch
from torch import Tensor

from lfl.storage.row_file import RowFile, grown

Kind = Literal["device", "host", "memmap"]

_CHUNK_BYTES = 2**28
_FIRST_CHUNK_BYTES = 2**20


class ClientStore:
    """Rows of numbers that belong to clients (control variates, personal weights, error feedback ...).

    All kinds give the same bits. "device" keeps the rows in the accelerator's memory, "host" in the CPU's (pinned
    where the device is a CUDA one), "memmap" in one file a slot. Those files are read and written by position
    (``pread``, ``pwrite``), not mapped: their pages then do not count as this process's memory, which stays the same
    however many rows there are, and a full disk is an ``OSError`` instead of the end of the process by SIGBUS.

    Checkpoints: ``snapshot`` gives a state to save, ``release`` says that it is no longer needed, ``restore`` fills a
    new store from it, of any kind. A memmap snapshot refers to rows in this store's files, so release it only after
    the checkpoint that holds it was deleted or replaced; then a process killed at any instant leaves a checkpoint that
    can be read in full.

    Args:
        num_clients: ids are 0 to ``num_clients - 1``.
        kind: where rows live.
        device: where ``gather`` puts them.
        directory: folder of the row files (memmap only), made at the first write. Files that are there already are
            left alone.
        shard: number of this process; part of the row files' names.

    Raises:
        ValueError: ``kind`` is unknown, ``num_clients`` is not positive, or memmap lacks its directory.

    Example:
        >>> store = ClientStore(1_000_000, "host", torch.device("cpu"))
        >>> store.declare("control", width=2, dtype=torch.float32)
        >>> store.scatter("control", torch.tensor([7]), torch.tensor([[1.0, 2.0]]))
        >>> store.gather("control", torch.tensor([7, 999_999])).tolist()
        [[1.0, 2.0], [0.0, 0.0]]
        >>> store.nbytes
        8
    """

    def __init__(
        self, num_clients: int, kind: Kind, device: torch.device, directory: Path | None = None, shard: int = 0
    ) -> None:
        if num_clients < 1:
            raise ValueError(f"`num_clients={num_clients}` of the client store must be greater than 0.")
        if kind not in get_args(Kind):
            raise ValueError(f"`kind={kind!r}` of the client store must be one of {', '.join(get_args(Kind))}.")
        if kind == "memmap" and directory is None:
            raise ValueError("`kind='memmap'` of the client store needs a `directory` for its row files.")
        self.num_clients = num_clients
        self.kind = kind
        self.device = device
        self.directory = directory
        self.shard = shard
        self._slots: dict[str, _Slot] = {}
        self._reserved: set[str] = set()
        self._tags: set[str] = set()

    def declare(self, name: str, width: int, dtype: torch.dtype, fill: float = 0.0) -> None:
        """Adds a slot; nothing happens where the same one was declared before.

        Args:
            name: the slot.
            width: numbers per client.
            dtype: their type.
            fill: what a row that was never written holds.

        Raises:
            ValueError: ``name`` was declared with other arguments, or ``fill`` or ``width`` cannot be.
        """
        layout = _Layout(width, dtype, float(fill))
        if width < 0:
            raise ValueError(f"`width={width}` of client slot {name!r} must not be negative.")
        if not dtype.is_floating_point and not layout.fill.is_integer():
            raise ValueError(f"`fill={fill}` of client slot {name!r} is no {dtype}.")
        known = self._slots.get(name)
        if known is None:
            self._slots[name] = _Slot(layout, _ClientIndex(self.num_clients))
        elif str(known.layout) != str(layout):  # as text, where nan equals nan
            raise ValueError(
                f"Client slot {name!r} is declared as {layout}, but it exists as {known.layout}: use another name."
            )

    def reserve(self, name: str) -> None:
        """Says that a slot will be declared during the rounds, when its width is known."""
        self._reserved.add(name)

    @property
    def is_used(self) -> bool:
        """Whether clients keep anything, now or later: then each must always be trained by the same process."""
        return bool(self._slots or self._reserved)

    def gather(self, name: str, ids: Tensor) -> Tensor:
        """The rows of clients ``ids`` [C] (int64, on the CPU; repeats allowed), a new tensor [C, width] on the device.

        Raises:
            ValueError: the slot is unknown, or an id is.
        """
        slot = self._slot(name)
        self._check_ids(ids)
        rows = slot.index.rows_of(ids)
        if slot.storage is not None and len(ids) and int(rows.min()) >= 0:
            return slot.storage.read(rows)
        where = (rows >= 0).nonzero().squeeze(1)
        layout = slot.layout
        result = torch.full((len(ids), layout.width), layout.fill, dtype=layout.dtype, device=self.device)
        if slot.storage is not None and len(where):
            result.index_copy_(0, where.to(self.device), slot.storage.read(rows[where]))
        return result

    @torch.no_grad()
    @torch.inference_mode(False)  # a tensor made in inference mode could not be changed after it
    def scatter(self, name: str, ids: Tensor, rows: Tensor) -> None:
        """Sets the rows of clients ``ids`` [C] (int64, on the CPU, none twice) to ``rows`` [C, width], on any device.

        Raises:
            ValueError: the slot or an id is unknown, an id is there twice, or ``rows`` has another shape or type.
            OSError: the rows do not fit on the disk (memmap).
        """
        slot = self._slot(name)
        self._check_ids(ids)
        if len(set(ids.tolist())) < len(ids):
            raise ValueError(f"Client ids to write to slot {name!r} repeat: {_shorten(ids)}.")
        expected = (len(ids), slot.layout.width)
        if tuple(rows.shape) != expected or rows.dtype != slot.layout.dtype:
            raise ValueError(
                f"Rows for client slot {name!r} must be {slot.layout.dtype} of shape {expected}, "
                f"not {rows.dtype} of shape {tuple(rows.shape)}."
            )
        if not len(ids):
            return
        if slot.storage is None:
            slot.storage = self._new_storage(name, slot.layout)
        targets, new_ids = slot.index.plan(ids)
        slot.storage.write(targets, rows.detach())
        slot.index.add(new_ids)  # last: a failed write adds no client

    @property
    def nbytes(self) -> int:
        """Bytes of all rows in use."""
        return sum(len(slot.index) * slot.layout.row_bytes for slot in self._slots.values())

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the declared slots."""
        return tuple(self._slots)

    def rows_in_use(self, name: str) -> int:
        """Number of clients whose row in slot ``name`` was written."""
        return len(self._slot(name).index)

    @torch.no_grad()
    @torch.inference_mode(False)
    def snapshot(self, tag: str) -> dict[str, Any]:
        """All rows as they are now, as tensors, numbers, strings and dictionaries on the CPU.

        In memory kinds the state holds a copy of the rows; for memmap it holds eight bytes a row and the names of the
        files, whose rows are on the disk when this returns and stay there until ``release(tag)``.

        Raises:
            ValueError: ``tag`` names a live snapshot.
            OSError: the disk is full, or fails.
        """
        if tag in self._tags:
            raise ValueError(f"There is a snapshot {tag!r} of the client store already: release it first.")
        files = self._files()
        for file in files:  # first, so that a failure leaves no slot with a snapshot
            file.sync()
        slots = {name: slot.snapshot(tag) for name, slot in self._slots.items()}
        self._tags.add(tag)
        return {"kind": self.kind, "num_clients": self.num_clients, "slots": slots}

    def release(self, tag: str) -> None:
        """Forgets a snapshot whose checkpoint was deleted or replaced: room that it alone held is used again.

        Raises:
            ValueError: there is no such snapshot.
        """
        if tag not in self._tags:
            raise ValueError(f"There is no snapshot {tag!r} of the client store; live ones: {sorted(self._tags)}.")
        self._tags.remove(tag)
        for file in self._files():
            if tag in file.tags:  # a slot may be younger than the snapshot
                file.release(tag)

    def restore(
        self, state: dict[str, Any], directory: Path | None = None, mine: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Adds the rows of a snapshot, of a store of any kind, to this one.

        Slots that this store lacks are declared. Call it once for each shard of a checkpoint to unite them. Row files
        are only read; their rows are copied into this store.

        Args:
            state: what ``snapshot`` returned.
            directory: the folder that the row files of a memmap snapshot lie in, which need not be this store's own.
            mine: which of some ids [C] to take [C] (bool); all where None.

        Raises:
            ValueError: the snapshot has other clients or slots than this store, or rows that this store has too.
            CheckpointError: a row file is missing, too short, or another run's.
        """
        if state["num_clients"] != self.num_clients:
            raise ValueError(
                f"The checkpoint has client state for {state['num_clients']} clients, but there are {self.num_clients}."
            )
        for name, saved in state["slots"].items():
            self.declare(name, saved["width"], getattr(torch, saved["dtype"]), saved["fill"])
            ids = saved["ids"] if mine is None else saved["ids"][mine(saved["ids"])]
            common = (self._slots[name].index.rows_of(ids) >= 0).sum().item()
            if common:
                raise ValueError(f"Slot {name!r} has rows of {common} clients already: restore into a new store.")
        for name, saved in state["slots"].items():
            start = 0
            for rows in _saved_rows(saved, self._slots[name].layout, directory):
                ids = saved["ids"][start : start + len(rows)]
                start += len(rows)
                if mine is not None:
                    taken = mine(ids)
                    ids, rows = ids[taken], rows[taken]
                self.scatter(name, ids, rows)

    def close(self) -> None:
        """Closes the row files; they stay on the disk."""
        for file in self._files():
            file.close()

    def _slot(self, name: str) -> "_Slot":
        if name not in self._slots:
            raise ValueError(f"There is no client slot {name!r}; declared are: {', '.join(self._slots) or 'none'}.")
        return self._slots[name]

    def _check_ids(self, ids: Tensor) -> None:
        if ids.dim() != 1 or ids.dtype != torch.long or ids.device.type != "cpu":
            raise ValueError(
                f"Client ids must be a vector of int64 on the CPU, not {ids.dtype} "
                f"of shape {tuple(ids.shape)} on {ids.device}."
            )
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < self.num_clients):
            unknown = ids[(ids < 0) | (ids >= self.num_clients)]
            raise ValueError(f"Client ids must be 0 to {self.num_clients - 1}, not {_shorten(unknown)}.")

    def _files(self) -> list[RowFile]:
        return [slot.storage.file for slot in self._slots.values() if isinstance(slot.storage, _FileRows)]

    def _new_storage(self, name: str, layout: "_Layout") -> "_Storage":
        if self.kind == "memmap":
            return _FileRows(self._new_file(name, layout), layout, self.device)
        home = self.device if self.kind == "device" else torch.device("cpu")
        return _MemoryRows(layout, home, self.device)

    def _new_file(self, name: str, layout: "_Layout") -> RowFile:
        assert self.directory is not None
        self.directory.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:  # a run that goes on in the folder of its checkpoint must not touch that one's files
            try:
                path = self.directory / f"{quote(name, safe='')}-shard{self.shard}-{number}.rows"
                return RowFile(path, layout.row_bytes)
            except FileExistsError:
                number += 1


@dataclass(frozen=True)
class _Layout:
    """What each row of a slot is."""

    width: int
    dtype: torch.dtype
    fill: float

    def __str__(self) -> str:
        return f"width={self.width}, dtype={self.dtype}, fill={self.fill}"

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize


class _ClientIndex:
    """Which row each client has: rows are numbered in the order of their first write."""

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self._rows = torch.empty(0, dtype=torch.long)  # [N] by client, -1 for none; made at the first write
        self._ids = torch.empty(0, dtype=torch.long)  # by row
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> Tensor:
        """The clients that have a row, by row."""
        return self._ids[: self._count]

    def rows_of(self, ids: Tensor) -> Tensor:
        """The row of each client, or -1."""
        return self._rows[ids] if self._count else torch.full_like(ids, -1)

    def plan(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row that each client has or would have, and the clients that have none yet."""
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


class _Storage(Protocol):
    """Numbered rows somewhere."""

    def read(self, rows: Tensor) -> Tensor:
        """The rows [C] as a new tensor [C, width] on the store's device."""

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Sets rows [C] to values [C, width], which may be on any device."""

    def snapshot(self, tag: str, count: int) -> dict[str, Any]:
        """The first ``count`` rows, for a checkpoint."""


@dataclass
class _Slot:
    layout: _Layout
    index: _ClientIndex
    storage: _Storage | None = None

    def snapshot(self, tag: str) -> dict[str, Any]:
        """The slot for a checkpoint; ``_saved_rows`` reads it."""
        state: dict[str, Any] = {
            "width": self.layout.width,
            "dtype": str(self.layout.dtype).removeprefix("torch."),
            "fill": self.layout.fill,
            "ids": self.index.ids.clone(),
        }
        if self.storage is not None and len(self.index):
            state |= self.storage.snapshot(tag, len(self.index))
        return state


def _saved_rows(saved: dict[str, Any], layout: _Layout, directory: Path | None) -> Iterator[Tensor]:
    """The rows of a slot's snapshot in the order of its ids, in parts."""
    if "rows" in saved:
        yield saved["rows"]
    elif "file" in saved:
        if directory is None:
            raise ValueError(f"The client rows of this checkpoint are in {saved['file']}: give its `directory`.")
        for part in RowFile.read_snapshot(saved, directory):
            yield part.flatten().view(layout.dtype).view(len(part), layout.width)


class _MemoryRows:
    """Rows in memory, in chunks: growing copies nothing, and no chunk is larger than 256 MiB (or one row)."""

    def __init__(self, layout: _Layout, home: torch.device, device: torch.device) -> None:
        self._layout = layout
        self._home = home
        self._device = device
        self._is_pinned = home.type == "cpu" and device.type == "cuda"
        self._chunks: list[Tensor] = []
        self._starts: list[int] = []
        self._capacity = 0

    def read(self, rows: Tensor) -> Tensor:
        result = torch.empty((len(rows), self._layout.width), dtype=self._layout.dtype, device=self._device)
        for chunk, where, local in self._parts(rows):
            if self._home.type == self._device.type:
                result.index_copy_(0, where.to(self._device), chunk.index_select(0, local.to(self._home)))
            else:
                for target, source in zip(where.tolist(), local.tolist(), strict=True):
                    result[target].copy_(chunk[source], non_blocking=self._is_pinned)
        return result

    def write(self, rows: Tensor, values: Tensor) -> None:
        self._grow(int(rows.max()) + 1)
        if self._home.type != "cpu":
            values = values.to(self._home)
        if self._is_pinned:  # copies that `read` started may still be under way
            torch.cuda.synchronize(self._device)
        for chunk, where, local in self._parts(rows):
            if values.device.type == self._home.type:
                chunk.index_copy_(0, local.to(self._home), values.index_select(0, where.to(self._home)))
            else:
                for source, target in zip(where.tolist(), local.tolist(), strict=True):
                    chunk[target].copy_(values[source], non_blocking=self._is_pinned)
        if self._is_pinned:
            torch.cuda.synchronize(self._device)

    def snapshot(self, tag: str, count: int) -> dict[str, Any]:
        del tag
        used = [chunk[: max(0, count - start)] for chunk, start in zip(self._chunks, self._starts, strict=True)]
        return {"rows": torch.cat([rows.cpu() for rows in used])}

    def _parts(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each chunk that ``rows`` touch: the chunk, where in ``rows``, and which rows of the chunk."""
        if len(self._chunks) == 1:
            yield self._chunks[0], torch.arange(len(rows)), rows
            return
        numbers = torch.bucketize(rows, torch.tensor(self._starts), right=True) - 1
        for number in sorted(set(numbers.tolist())):
            where = (numbers == number).nonzero().squeeze(1)
            yield self._chunks[number], where, rows[where] - self._starts[number]

    def _grow(self, size: int) -> None:
        """Doubles until there is room, in chunks of limited size."""
        least, limit = (max(1, bytes // max(1, self._layout.row_bytes)) for bytes in (_FIRST_CHUNK_BYTES, _CHUNK_BYTES))
        while self._capacity < size:
            count = min(limit, max(least, self._capacity, size - self._capacity))
            shape = (count, self._layout.width)
            chunk = torch.empty(shape, dtype=self._layout.dtype, device=self._home, pin_memory=self._is_pinned)
            self._chunks.append(chunk)
            self._starts.append(self._capacity)
            self._capacity += count


class _FileRows:
    """Rows in a row file."""

    def __init__(self, file: RowFile, layout: _Layout, device: torch.device) -> None:
        self.file = file
        self._layout = layout
        self._device = device

    def read(self, rows: Tensor) -> Tensor:
        shape = (len(rows), self._layout.width)
        is_pinned = self._device.type == "cuda"
        result = torch.empty(shape, dtype=self._layout.dtype, pin_memory=is_pinned)
        self.file.read(rows, out=_as_bytes(result))
        return result.to(self._device, non_blocking=is_pinned)

    def write(self, rows: Tensor, values: Tensor) -> None:
        self.file.write(rows, _as_bytes(values.cpu().contiguous()))

    def snapshot(self, tag: str, count: int) -> dict[str, Any]:
        assert count == len(self.file)
        return self.file.snapshot(tag)


def _as_bytes(rows: Tensor) -> Tensor:
    """The same memory as uint8 [C, bytes]."""
    return rows.view(torch.uint8)


def _shorten(ids: Tensor) -> str:
    shown = ", ".join(map(str, ids[:5].tolist()))
    return shown if len(ids) <= 5 else f"{shown}, ... ({len(ids)} in all)"
