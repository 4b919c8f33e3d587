"""Processes are kept, replaced where they are lost, and never outlive their parent."""

import operator
import os
import signal
import subprocess
import sys
import time

import pytest

from lfl.sweep.workers import Failure, WorkerPool

PARENT = """
import sys, time
from lfl.sweep.workers import WorkerPool
if __name__ == "__main__":
    pool = WorkerPool(2, max)
    import os
    print(*sorted({pid for _, pid in pool.results([(os.getpid, ())] * 8)}), flush=True)
    for _ in pool.events([(time.sleep, (100,))] * 2):
        pass
"""


def leave() -> None:
    """Not `sys.exit` itself as a call: libraries put their own in its place, which cannot be pickled."""
    sys.exit(3)


@pytest.fixture
def pool():
    pool = WorkerPool(2, max)
    yield pool
    pool.close()


def test_processes_are_started_once_and_called_again(pool: WorkerPool) -> None:
    first = dict(pool.results([(operator.add, (n, 1)) for n in range(6)]))
    processes = {pid for _ in range(2) for _, pid in pool.results([(os.getpid, ())] * 6)}
    assert first == {n: n + 1 for n in range(6)}
    assert 1 <= len(processes) <= 2
    assert os.getpid() not in processes


def test_an_error_is_a_failure_of_its_call(pool: WorkerPool) -> None:
    found = dict(pool.results([(operator.truediv, (1, 0)), (operator.add, (1, 1)), (leave, ())]))
    assert found == {0: Failure("ZeroDivisionError: division by zero"), 1: 2, 2: Failure("SystemExit: 3")}


def test_a_killed_process_is_a_failure_and_is_replaced(pool: WorkerPool) -> None:
    calls = [(signal.raise_signal, (signal.SIGKILL,))] * 3 + [(operator.add, (1, 1))]
    found = dict(pool.results(calls))
    assert found == {n: Failure("its process was killed by signal 9 (SIGKILL)") for n in range(3)} | {3: 2}


def test_events_say_when_calls_begin_and_let_time_pass(pool: WorkerPool) -> None:
    events = list(pool.events([(time.sleep, (0.3,))], tick=0.05))
    numbered = [(event.number, event.has_ended) for event in events if event is not None]
    assert numbered == [(0, False), (0, True)]
    assert events.count(None) >= 3


def test_calls_that_nobody_waits_for_are_given_up(pool: WorkerPool) -> None:
    first = next(pool.results([(operator.add, (1, 1)), (time.sleep, (100,))]))
    assert first == (0, 2)
    assert dict(pool.results([(operator.add, (n, n)) for n in range(4)])) == {0: 0, 1: 2, 2: 4, 3: 6}


def test_a_stop_interrupts_what_runs_and_begins_nothing(pool: WorkerPool) -> None:
    events = []
    for event in pool.events([(time.sleep, (100,))] * 4, tick=0.05):
        events.append(event)
        if not pool.is_stopping and events.count(None) > 10:
            pool.stop(signal.SIGINT)
    ended = [event.result for event in events if event is not None and event.has_ended]
    assert ended == [Failure("interrupted")] * 2


def test_nothing_begins_after_a_stop(pool: WorkerPool) -> None:
    events = pool.events([(time.sleep, (100,))] * 2)
    next(events)
    pool.stop(signal.SIGINT)
    assert [(event.number, event.has_ended) for event in events if event is not None] == [(0, True)]


def test_a_stop_reaches_a_process_that_has_not_come_to_its_call() -> None:
    pool = WorkerPool(1, max)
    events = pool.events([(time.sleep, (100,))])
    assert next(events) is not None  # begun: the process still starts, and ignores the signal
    pool.stop(signal.SIGINT)
    assert next(events).result == Failure("interrupted")
    pool.close()


def is_there(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_process_outlives_a_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert workers
    assert all(map(is_there, workers))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(map(is_there, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_there, workers))
