"""The store of what clients keep between rounds: named slots with one row per client, in memory or in a file.

A row is made when it is first written, so clients that never take part cost no memory.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

import torch
from torch import Tensor

from lfl.storage.row_file import RowFile
from lfl.storage.rows import ClientIndex, FileRows, MemoryRows, RowLayout, RowStorage

Kind = Literal["device", "host", "memmap"]


class ClientStore:
    """Rows of numbers that belong to clients: control variates, personal weights, error feedback and so on.

    All kinds of stores give exactly the same numbers. "device" keeps the rows in the accelerator's memory, "host" in
    the CPU's memory (pinned if the device is a CUDA GPU), and "memmap" in one file per slot. The files are read and
    written by position (``pread``, ``pwrite``) and not mapped, so the memory of this process stays the same however
    many rows there are, and a full disk raises ``OSError`` instead of ending the process by SIGBUS.

    For checkpoints, ``snapshot`` returns a state to save, ``release`` says that it is no longer needed, and ``restore``
    fills a new store, of any kind, from it. A memmap snapshot refers to rows in this store's files, so release it only
    after the checkpoint that holds it was deleted or replaced. Then a process that is killed at any moment leaves a
    checkpoint that can be read completely.

    Args:
        num_clients: number of clients (N); their ids are 0 to N - 1.
        kind: where rows are kept.
        device: the device on which ``gather`` returns them.
        directory: folder of the row files (memmap only), made at the first write. Existing files are not touched.
        shard: rank of this process; part of the row files' names.

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
        self._claimant: object | None = None  # who declares slots at present
        self._owners: dict[str, object] = {}  # who has declared or reserved each slot

    @contextmanager
    def claimed_by(self, owner: object) -> Iterator[None]:
        """Context in which slots that are declared or reserved belong to ``owner``, and to nobody else."""
        self._claimant = owner
        try:
            yield
        finally:
            self._claimant = None

    def declare(self, name: str, width: int, dtype: torch.dtype, fill: float = 0.0) -> None:
        """Adds a slot. Declaring it again with the same arguments does nothing.

        Args:
            name: name of the slot.
            width: numbers per client.
            dtype: type of the numbers.
            fill: value of the numbers in a row that was never written.

        Raises:
            ValueError: ``name`` was declared with other arguments, ``width`` is negative, or ``fill`` is not of
                ``dtype``, or the slot belongs to somebody else (``claimed_by``).
        """
        self._claim(name)
        layout = RowLayout(width, dtype, float(fill))
        if width < 0:
            raise ValueError(f"`width={width}` of client slot {name!r} must not be negative.")
        if not dtype.is_floating_point and not layout.fill.is_integer():
            raise ValueError(f"`fill={fill}` of client slot {name!r} is no {dtype}.")
        known = self._slots.get(name)
        if known is None:
            self._slots[name] = _Slot(layout, ClientIndex(self.num_clients))
        elif str(known.layout) != str(layout):  # as text, where nan equals nan
            raise ValueError(
                f"Client slot {name!r} is declared as {layout}, but it exists as {known.layout}: use another name."
            )

    def reserve(self, name: str) -> None:
        """Announces a slot that will be declared during the rounds, when its width is known.

        Raises:
            ValueError: the slot belongs to somebody else (``claimed_by``).
        """
        self._claim(name)
        self._reserved.add(name)

    @property
    def is_used(self) -> bool:
        """Whether clients keep rows, now or later. Then each client must always be trained by the same process."""
        return bool(self._slots or self._reserved)

    def gather(self, name: str, ids: Tensor) -> Tensor:
        """Reads the rows of clients ``ids`` [C] (int64, on the CPU; an id may repeat) into a new tensor [C, width].

        Raises:
            ValueError: the slot or an id is unknown.
        """
        slot = self._slot(name)
        self._check_ids(ids)
        rows = slot.index.rows_of(ids)
        # The usual case after a few rounds: all clients have a row, and nothing needs to be filled.
        if slot.storage is not None and len(ids) and int(rows.min()) >= 0:
            return slot.storage.read(rows)
        where = (rows >= 0).nonzero().squeeze(1)
        layout = slot.layout
        result = torch.full((len(ids), layout.width), layout.fill, dtype=layout.dtype, device=self.device)
        if slot.storage is not None and len(where):
            result.index_copy_(0, where.to(self.device), slot.storage.read(rows[where]))
        return result

    def has_rows(self, name: str, ids: Tensor) -> Tensor:
        """Mask [C] (bool, on the CPU) of those clients ``ids`` [C] whose row in slot ``name`` was written.

        Raises:
            ValueError: the slot or an id is unknown.
        """
        slot = self._slot(name)
        self._check_ids(ids)
        return slot.index.rows_of(ids) >= 0

    @torch.no_grad()
    @torch.inference_mode(False)  # a tensor made in inference mode cannot be changed outside of it
    def scatter(self, name: str, ids: Tensor, rows: Tensor) -> None:
        """Sets the rows of clients ``ids`` [C] (int64, on the CPU, none twice) to ``rows`` [C, width], on any device.

        Raises:
            ValueError: the slot or an id is unknown, an id repeats, or ``rows`` has another shape or type.
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
        # Last: after a failed write, such as on a full disk, clients that had no row still have none.
        slot.index.add(new_ids)

    @property
    def nbytes(self) -> int:
        """Number of bytes of all rows that were written."""
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
        """The state of all rows, as tensors, numbers, strings and dictionaries on the CPU.

        For "device" and "host" it holds a copy of the rows. For "memmap" it holds eight bytes per row and the names of
        the files; the rows are on the disk when this returns, and stay there until ``release(tag)``.

        Raises:
            ValueError: ``tag`` names a snapshot that was not released.
            OSError: the disk is full, or fails.
        """
        if tag in self._tags:
            raise ValueError(f"There is a snapshot {tag!r} of the client store already: release it first.")
        # All files before the first snapshot: if a disk fails, no slot is left with a snapshot that nobody releases.
        for file in self._files():
            file.sync()
        slots = {name: slot.snapshot(tag) for name, slot in self._slots.items()}
        self._tags.add(tag)
        return {"kind": self.kind, "num_clients": self.num_clients, "slots": slots}

    def release(self, tag: str) -> None:
        """Forgets a snapshot whose checkpoint was deleted or replaced, so that its room in the files is used again.

        Raises:
            ValueError: there is no such snapshot.
        """
        if tag not in self._tags:
            raise ValueError(f"There is no snapshot {tag!r} of the client store; live ones: {sorted(self._tags)}.")
        self._tags.remove(tag)
        for file in self._files():
            if tag in file.tags:  # a slot that was declared after the snapshot is not part of it
                file.release(tag)

    def restore(
        self, state: dict[str, Any], directory: Path | None = None, mine: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Adds the rows of a snapshot, of a store of any kind, to this store.

        Slots that this store lacks are declared. A checkpoint of several processes has one snapshot per process: call
        this once for each of them. Row files are only read; their rows are copied into this store.

        Args:
            state: what ``snapshot`` returned.
            directory: folder of the row files of a memmap snapshot; it need not be this store's own.
            mine: returns a mask [C] (bool) of those clients ``ids`` [C] whose rows to take; None takes all.

        Raises:
            ValueError: the snapshot has another number of clients, a slot with another layout, or rows that this store
                has already.
            CheckpointError: a row file is missing, too short, or from another run.
        """
        if state["num_clients"] != self.num_clients:
            raise ValueError(
                f"The checkpoint has client state for {state['num_clients']} clients, but there are {self.num_clients}."
            )
        # Two passes: slots and clients that clash are found before the first row is written.
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
                    is_mine = mine(ids)
                    ids, rows = ids[is_mine], rows[is_mine]
                self.scatter(name, ids, rows)

    def close(self) -> None:
        """Closes the row files; they stay on the disk."""
        for file in self._files():
            file.close()

    def _claim(self, name: str) -> None:
        if self._claimant is None:
            return
        owner = self._owners.setdefault(name, self._claimant)
        if owner is not self._claimant:
            first, second = (o if isinstance(o, str) else type(o).__name__ for o in (owner, self._claimant))
            both = f"Two {first} share" if first == second else f"{first} and {second} share"
            raise ValueError(
                f"{both} the client slot {name!r}, and would read each other's rows: use one of them, or give each a "
                "slot of its own name."
            )

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
        return [slot.storage.file for slot in self._slots.values() if isinstance(slot.storage, FileRows)]

    def _new_storage(self, name: str, layout: RowLayout) -> RowStorage:
        if self.kind == "memmap":
            return FileRows(self._new_file(name, layout), layout, self.device)
        home = self.device if self.kind == "device" else torch.device("cpu")
        return MemoryRows(layout, home, self.device)

    def _new_file(self, name: str, layout: RowLayout) -> RowFile:
        assert self.directory is not None
        self.directory.mkdir(parents=True, exist_ok=True)
        number = 0
        # The first number that is free: if a checkpoint is resumed in its own folder, its files stay as they are.
        while True:
            try:
                # Quoted: the name of a slot may hold a slash.
                path = self.directory / f"{quote(name, safe='')}-shard{self.shard}-{number}.rows"
                return RowFile(path, layout.row_bytes)
            except FileExistsError:
                number += 1


@dataclass
class _Slot:
    layout: RowLayout
    index: ClientIndex
    storage: RowStorage | None = None

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


def _saved_rows(saved: dict[str, Any], layout: RowLayout, directory: Path | None) -> Iterator[Tensor]:
    """Reads the rows of a slot's snapshot in the order of its ids, in chunks [n, width]."""
    if "rows" in saved:
        yield saved["rows"]
    elif "file" in saved:
        if directory is None:
            raise ValueError(f"The client rows of this checkpoint are in {saved['file']}: give its `directory`.")
        for rows in RowFile.read_snapshot(saved, directory):
            yield rows.flatten().view(layout.dtype).view(len(rows), layout.width)


def _shorten(ids: Tensor) -> str:
    shown = ", ".join(map(str, ids[:5].tolist()))
    return shown if len(ids) <= 5 else f"{shown}, ... ({len(ids)} in all)"
