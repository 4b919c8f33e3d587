"""Processes that read items ahead, started once and used by all plans of a run."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import shared_cache
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset

from lfl.data.columns import DataError
from lfl.data.items import ItemReader, Request

_NAMED = 20  # items that an error names
_SMALL = 2**20  # bytes of a tensor
_END = object()


class Workers:
    """Worker processes of a torch ``DataLoader``, which live until they are closed and read one plan after another.

    They start with the first plan, anew where a data set has changed since, and end with ``close``, when nobody holds
    this object any more, or at exit. A plan may be left half way, and others may be read in between: what was asked for
    and has not come is asked for again, which changes nothing, since an item depends on its address only.

    Args:
        count: number of processes, at least 1.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._readers: list[ItemReader] = []
        self._requests = _Requests()
        self._loader: DataLoader[Any] | None = None
        self._state: Any = None  # of the data sets when the processes got them
        self._plan: object = None  # the one that the processes read now
        self._end: Any = None  # ends the processes

    def add(self, reader: ItemReader) -> int:
        """Let the processes read from a data set, too; returns its number."""
        self.close()
        self._readers.append(reader)
        return len(self._readers) - 1

    def read(self, plan: Iterator[Request], pins: bool = False) -> Iterator[Any]:
        """The batch that each request of ``plan`` asks for, in order; several are read ahead.

        Args:
            plan: of one data set; read ahead, too.
            pins: put batches into memory from which a GPU can copy.

        Raises:
            DataError: the items of a batch do not fit together, or the data set cannot be sent to other processes.
            RuntimeError: a process has died; a note names the items that were being read.
        """
        mine, asked = object(), deque[Request]()
        requests, batches = _asking(plan, asked), iter(())
        try:
            while True:
                if self._plan is not mine:  # at first, and after another plan was read in between
                    requests = _asking(plan, asked)
                    batches, self._plan = self._started(requests, pins), mine
                batch = next(batches, _END)
                if batch is _END:
                    return
                if isinstance(batch, DataError):
                    raise batch
                asked.popleft()
                yield _unpacked(batch)
        except GeneratorExit:
            raise  # nobody wants the rest of the plan; the next one begins with idle processes
        except BaseException as error:
            if asked and self._has_lost_one():
                places = [position for request in asked for position, _ in request.places]
                named = ", ".join(map(str, places[:_NAMED])) + (", ..." if len(places) > _NAMED else "")
                name = self._readers[asked[0].number].name
                error.add_note(f"A worker was lost while these items of {name} were read: {named}.")
            self.close()
            raise
        finally:
            requests.close()  # the loader holds it, and it holds whatever the plan does

    def close(self) -> None:
        """End the processes; the next plan starts new ones."""
        self._loader, self._plan = None, None
        if self._end is not None:
            atexit.unregister(self._end)
            self._end()

    def __getstate__(self) -> dict[str, Any]:
        # A copy, also in another process, starts processes of its own.
        return {**self.__dict__, "_requests": _Requests(), "_loader": None, "_plan": None, "_end": None}

    def _started(self, requests: Iterator[Request], pins: bool) -> Any:
        """An iterator of the batches that ``requests`` ask for; starts the processes where there are none."""
        for reader in self._readers:
            _ = reader.generators  # found here, once, and not by each worker again
        state = pins, [reader.state() for reader in self._readers]
        if state != self._state or self._has_lost_one():  # the processes would read a data set as it was
            self.close()
        self._requests.source = requests
        if self._loader is not None:
            return iter(self._loader)  # waits for what was left of the last plan
        self._state = state
        loader: DataLoader[Any] = DataLoader(
            _Readers(self._readers),
            batch_sampler=self._requests,  # type: ignore[arg-type]  # lists, says torch, and passes them on
            num_workers=self._count,
            collate_fn=_packed,
            pin_memory=pins,
            generator=torch.Generator(),  # or the loader would draw from the global one
            worker_init_fn=_begin,
            persistent_workers=True,
        )
        try:
            batches = iter(loader)
        except (AttributeError, TypeError, PicklingError) as error:
            raise DataError(
                f"The data cannot be sent to the processes of `num_workers={self._count}` ({error}): make "
                "it of classes and functions at the top of a module, or set `num_workers` to 0."
            ) from error
        self._loader = loader
        # The finalizer holds the loader, which is then whole when it is ended, also if all else is garbage in a circle.
        self._end = weakref.finalize(self, _end, loader, os.getpid())
        self._end.atexit = False
        atexit.register(self._end)  # before torch's own hooks, after which loaders do not end their processes any more
        return batches

    def _has_lost_one(self) -> bool:
        iterator: Any = None if self._loader is None else self._loader._iterator
        return iterator is not None and not all(process.is_alive() for process in iterator._workers)


class _Readers(Dataset[Any]):
    """The readers that the processes hold, as a data set that is indexed by requests."""

    def __init__(self, readers: list[ItemReader]) -> None:
        self._readers = readers

    def __getitems__(self, request: Request) -> Any:
        """The batch that a request asks for, or what is wrong with it."""
        try:
            return self._readers[request.number].batch(request.places, request.rows)
        except DataError as error:
            return error  # raised in a worker, it would arrive as the text of a traceback


class _Requests:
    """A batch sampler that hands out the requests of the present plan."""

    def __init__(self) -> None:
        self.source: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.source


def _asking(plan: Iterator[Request], asked: deque[Request]) -> Generator[Request, None, None]:
    """The requests in ``asked``, whose batches have not come, and then the rest of the plan, which is noted there."""
    yield from tuple(asked)
    for request in plan:
        asked.append(request)
        yield request


def _begin(_number: int) -> None:
    """Make a process that has just started a worker."""
    # A terminal or a cluster sends these to all processes of a run, which goes on to the end of its round.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # A collection writes into every object that the parent had: the memory that both have in common would be copied.
    gc.freeze()


def _packed(batch: Any) -> Any:
    """A batch as a worker sends it: small tensors as arrays, by value.

    In shared memory a tensor costs two milliseconds, whatever its size: a file that is opened in both processes.
    """
    return tree_map_only(Tensor, lambda part: part.numpy() if _is_small(part) else part, batch)


def _unpacked(batch: Any) -> Any:
    # torch notes each tensor in shared memory, and forgets dead ones a hundred at a time. Until then these notes lie
    # among batches of many MB that come and go, whose memory cannot be joined for others: a GB for batches of 10 MB.
    shared_cache.free_dead_references()
    return tree_map_only(np.ndarray, torch.from_numpy, batch)


def _is_small(part: Tensor) -> bool:
    return part.nbytes <= _SMALL and part.dtype != torch.bfloat16  # which numpy does not have


def _end(loader: DataLoader[Any], owner: int) -> None:
    iterator: Any = loader._iterator
    if iterator is None or owner != os.getpid():  # a forked process ends no process of its parent's
        return
    iterator._shutdown_workers()  # as Lightning does; torch has no public way
    for process in iterator._workers:
        if process.is_alive():  # in the midst of a long item, and deaf to signals
            process.kill()
