"""Processes that are started once and called many times, of which none outlives its parent."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from typing import Any

from lfl.processes.signals import how_it_ended

_SPAWN = get_context("spawn")
_STOP, _END = "stop", "end"  # sent in the place of a call

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that can be imported, and its arguments."""


@dataclass(frozen=True)
class Failure:
    """The result of a call that raised an error, or whose process was lost.

    Attributes:
        message: one line.
    """

    message: str


@dataclass(frozen=True)
class Event:
    """An event of a call: it was begun or, with a result, it has ended.

    Attributes:
        number: of the call.
        result: what the function returned, or a Failure.
    """

    number: int
    has_ended: bool = False
    result: Any = None


class WorkerPool:
    """Calls functions in processes that stay, since importing torch and Lightning takes seconds.

    Unlike a pool of the standard library: a process that is killed is a failed call, and replaced; a process whose
    parent is gone ends at once, whatever it does; calls may start processes of their own (workers of a DataLoader).
    The processes are in sessions of their own: Ctrl-C reaches the parent, which passes it on by ``stop``.

    Args:
        size: number of processes, at most.
        prepare: called first in each process, with ``size`` and the process's number from 0.

    Attributes:
        is_stopping: whether no further call is begun.
    """

    def __init__(self, size: int, prepare: Callable[[int, int], None]) -> None:
        self._size, self._prepare = size, prepare
        self._workers: list[_Worker] = []
        self.is_stopping = False

    def events(self, calls: Sequence[Call], tick: float | None = None) -> Iterator[Event | None]:
        """Make some calls, in order; yields an event when one begins or ends.

        Args:
            calls: functions and arguments.
            tick: seconds after which None is yielded if nothing has happened; None for never.
        """
        for worker in [worker for worker in self._workers if worker.number is not None]:
            self._drop(worker)  # nobody waits any more for what it does
        waiting = deque(enumerate(calls))
        while (waiting and not self.is_stopping) or any(worker.number is not None for worker in self._workers):
            for worker in self._idle(len(waiting)):
                if self.is_stopping:  # since the last event
                    break
                number, call = waiting.popleft()
                if worker.begin(number, call):
                    yield Event(number)
                else:  # it was killed meanwhile
                    waiting.appendleft((number, call))
                    self._drop(worker)
            busy = {w.connection: w for w in self._workers if w.number is not None}
            ready = connection.wait(list(busy), tick) if busy else []
            for worker in [busy[c] for c in ready if isinstance(c, Connection)]:
                ended = worker.result()
                if isinstance(ended.result, Failure) and not worker.process.is_alive():
                    self._drop(worker)
                yield ended
            if not ready:
                yield None

    def results(self, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Make some calls; yields the number of each that ends, and what it returned or a Failure."""
        for event in self.events(calls):
            if event is not None and event.has_ended:
                yield event.number, event.result

    def stop(self, number: int) -> None:
        """Begin no further call, and send a signal to the processes that are in one."""
        self.is_stopping = True
        for worker in self._workers:
            if worker.number is not None:
                worker.interrupt(number)

    def kill(self) -> None:
        """End all processes at once."""
        self.is_stopping = True
        for worker in self._workers:
            worker.process.kill()

    def close(self) -> None:
        """End the processes, whose calls have ended or are given up."""
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.process.join()
        self._workers = []

    def _idle(self, wanted: int) -> list[_Worker]:
        """Up to ``wanted`` processes that do nothing; new ones where there are fewer than allowed."""
        if self.is_stopping:
            return []
        idle = [worker for worker in self._workers if worker.number is None]
        places = sorted(set(range(self._size)) - {worker.place for worker in self._workers})
        started = [_Worker(place, self._size, self._prepare) for place in places[: max(0, wanted - len(idle))]]
        self._workers += started
        return (idle + started)[:wanted]

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.process.kill()
        worker.connection.close()
        worker.process.join()


class _Worker:
    """One process, seen from its parent."""

    def __init__(self, place: int, size: int, prepare: Callable[[int, int], None]) -> None:
        self.place = place
        self.number: int | None = None  # of the call that it is in
        self.connection, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(theirs, prepare, size, place), name=f"worker-{place}")
        # It must not die, with a traceback, of a Ctrl-C that comes while it starts; what is ignored is inherited.
        in_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main else None
        try:
            self.process.start()
        finally:
            if in_main:
                signal.signal(signal.SIGINT, before)
            theirs.close()  # or the end of the process would not end the connection

    def begin(self, number: int, call: Call) -> bool:
        """Hand over a call; False if the process is gone."""
        try:
            self.connection.send(call)
        except OSError:
            return False
        self.number = number
        return True

    def result(self) -> Event:
        """The end of the call, for which the connection is ready."""
        assert self.number is not None
        try:
            result = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            result = Failure(f"its process {how_it_ended(self.process.exitcode or 0)}")
        number, self.number = self.number, None
        return Event(number, has_ended=True, result=result)

    def end(self) -> None:
        """End the process: at once if it is in a call."""
        if self.number is not None:
            self.process.kill()
        with suppress(OSError):  # it has ended
            self.connection.send(_END)
        self.connection.close()

    def interrupt(self, number: int) -> None:
        """Send a signal; or a word, which is found by a call that has not come far enough for it."""
        with suppress(OSError):  # it has ended: the connection says so
            self.connection.send(_STOP)
            os.kill(self.process.pid or 0, number)


def _serve(calls: Connection, prepare: Callable[[int, int], None], size: int, place: int) -> None:
    """Make calls until the connection ends."""
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    prepare(size, place)
    while True:
        try:
            call = calls.recv()
        except EOFError:
            return
        if call == _END:
            return
        if call == _STOP:  # came when the last call had ended
            continue
        result = _interruptible(calls, *call)
        try:
            calls.send(result)
        except BrokenPipeError:
            return


def _interruptible(calls: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Make one call, which SIGINT interrupts; outside of calls it is ignored."""
    try:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # A signal that came before the line above was ignored; the word that came before it is here.
            if calls.poll():
                raise KeyboardInterrupt
            return function(*arguments)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        return Failure("interrupted")
    except (Exception, SystemExit) as error:
        return Failure(" ".join(traceback.format_exception_only(error)[-1].split()))


def _end_with_parent() -> None:
    """End this process when its parent has ended, by whatever means."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # not `sys.exit`, which would end this thread only
