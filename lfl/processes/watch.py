"""Ends all processes of a run when one of them is lost, within seconds and with a message.

Without it, the other processes would wait for the lost one in a collective operation, for half an hour or for ever.
"""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment

from lfl.processes.signals import how_it_ended

_PERIOD = 0.2  # seconds between two checks
# Seconds that the main thread gets to end by itself after a process was lost. In a collective operation it fails at
# once, with a proper traceback; in local training it notices nothing, and the watching thread ends the process.
_GRACE = 3.0
# Seconds to wait for the name of the lost process: its connections break some time before the process has ended.
_PATIENCE = 10.0
_LAUNCHER = "LFL_LAUNCHER"  # environment variable with the id of the process that launched the others


class LostProcessError(RuntimeError):
    """Another process of the run ended before the run was over."""


class ProcessWatch:
    """Watches the processes that Fabric's own launcher started on this machine.

    The process that launched the others watches them, and each of them watches the launcher. If one is lost, every
    process gets a few seconds to fail by itself, in the collective operation that it shares with the lost one. A
    process that does not fail in that time is ended; the launcher then also kills the processes that it launched. No
    time limit on collective operations is needed, so local training may take as long as it likes.

    Processes that torchrun or SLURM started are ended by torchrun or SLURM. There, this class only adds a clear
    message when a collective operation fails.

    Args:
        fabric: Fabric; its processes need not be started yet.
        advice: returns the last sentence of the message: how to continue the run.
    """

    def __init__(self, fabric: Fabric, advice: Callable[[], str]) -> None:
        self._fabric = fabric
        self._advice = advice
        self._children: list[subprocess.Popen[bytes]] = []  # on the launcher: the processes that it started
        self._lost = ""  # which process is lost, once the watching thread knows
        self._is_found = threading.Event()  # `_lost` has been set
        self._is_over = threading.Event()  # the run has left `guarding`: the watching thread ends

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Watch the other processes while the body runs, and wait for all of them at its end.

        Raises:
            LostProcessError: a collective operation failed because another process is lost.
        """
        if self._fabric.world_size == 1:
            yield
            return
        self._is_over.clear()
        # Registered once, however many runs this process makes.
        atexit.unregister(_disconnect)
        atexit.register(_disconnect)
        if self._is_launched_by_fabric:
            # The launcher gets here first, before Fabric starts the others, which inherit its environment.
            os.environ.setdefault(_LAUNCHER, str(os.getpid()))
            # A daemon: it must not keep a process alive that has nothing else to do.
            threading.Thread(target=self._watch, name="process-watch", daemon=True).start()
        try:
            yield
            # A process that is done waits for the others: if it ended here, they would take it for lost.
            self._fabric.barrier()
        except RuntimeError as error:
            if not _is_of_a_collective(error):
                raise
            raise LostProcessError(self._message(error)) from error
        finally:
            self._is_over.set()

    @property
    def _is_launched_by_fabric(self) -> bool:
        launcher = self._fabric.strategy.launcher
        return isinstance(getattr(launcher, "cluster_environment", None), LightningEnvironment)

    def _watch(self) -> None:
        """Check again and again whether a process is lost; runs in a thread of its own."""
        # Waiting for the event is also the pause between two checks: the end of a run ends the thread at once.
        while not self._is_over.wait(_PERIOD):
            self._lost = self._find_lost()
            if self._lost:
                self._is_found.set()  # after `_lost`, which the main thread reads once this is set
                # Besides errors, this covers the end of a run: another process may leave the last barrier, and end, a
                # moment before this one. Then `_is_over` is set within that time, and nothing happens.
                if not self._is_over.wait(_GRACE):
                    self._end()
                return

    def _find_lost(self) -> str:
        """The process that is lost and how it ended; empty if all are alive."""
        if (launcher := int(os.environ[_LAUNCHER])) != os.getpid():
            # A process whose parent has ended gets another parent. Asking for the launcher's id instead would find
            # any process that has been given the same id since.
            if os.getppid() == launcher:
                return ""
            return f"Process {self._fabric.global_rank - self._fabric.local_rank} ended."
        # Taken out of the list of Fabric's own observer. It kills this process, without a message, as soon as one of
        # the others ends with a code that is not 0, even after a run that a signal stopped cleanly.
        procs: list[Any] = getattr(self._fabric.strategy.launcher, "procs", [])
        while procs:
            self._children.append(procs.pop(0))
        for number, child in enumerate(self._children, start=1):
            code = child.poll()
            if code is not None:
                return f"Process {self._fabric.global_rank + number} {how_it_ended(code)}."
        return ""

    def _end(self) -> None:
        """End this process, whose main thread has not noticed the loss, and the processes that it launched."""
        print(f"lfl: error in process {self._fabric.global_rank}: {self._message()}", file=sys.stderr, flush=True)
        for child in self._children:
            child.kill()
        # Not `sys.exit`, which would end this thread only: the main thread may hang in a collective operation for
        # ever. Nothing is lost: checkpoints are renamed when they are whole, and rows of the CSV are written at once.
        os._exit(1)

    def _message(self, error: Exception | None = None) -> str:
        # The main thread may come here, with a broken connection, before the watching thread knows who is lost.
        if self._is_launched_by_fabric:
            self._is_found.wait(_PATIENCE)
        lost = self._lost or f"Another process of the run is gone ({_reason(error)}): see its own message."
        return f"{lost} {self._advice()}"


def _disconnect() -> None:
    """Close the connections before Python ends: gloo's threads would outlive it and may abort the process (code -6)."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _is_of_a_collective(error: RuntimeError) -> bool:
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


def _reason(error: Exception | None) -> str:
    """The informative part of an error message of gloo.

    From ``[.../pair.cc:545] Read error [...]: Connection reset by peer. This is ...`` it keeps ``Read error [...]:
    Connection reset by peer``.
    """
    return re.sub(r"^\[\S+\] ", "", str(error).partition("\n")[0]).partition(". ")[0].rstrip(".")
