"""Several processes are one run: where one is lost the others end as well, in seconds and with a message."""

from __future__ import annotations

import atexit
import os
import re
import signal
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

_PERIOD = 0.2  # seconds between two looks
_GRACE = 3.0  # seconds in which the main thread may end by itself: a collective fails at once, local training lasts
_PATIENCE = 10.0  # seconds to learn who is gone: connections break some time before their process has ended
_LAUNCHER = "LFL_LAUNCHER"  # in the environment of launched processes: the process that launched them


class LostProcessError(RuntimeError):
    """Another process of the run is gone."""


class ProcessWatch:
    """Looks after the processes that Fabric's own launcher started on this machine.

    The process that launched looks at the others, and they look at it. When one is gone, this process has some seconds
    to end in good order, by the failure of whatever it shares with the lost one; else it is ended, and where it is the
    launcher, the others with it. Nothing depends on a time limit of the collectives: local training takes its time.

    Where torchrun or SLURM start the processes, they also end the others when one is lost; what is done here is to say
    so where a collective fails.

    Args:
        fabric: its processes need not be started.
        advice: how to go on, a sentence for the end of the message.
    """

    def __init__(self, fabric: Fabric, advice: Callable[[], str]) -> None:
        self._fabric, self._advice = fabric, advice
        self._children: list[subprocess.Popen[bytes]] = []
        self._lost = ""
        self._found, self._over = threading.Event(), threading.Event()

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Look while the body runs; all processes leave it together.

        Raises:
            LostProcessError: what the processes share failed, since one of them is gone.
        """
        if self._fabric.world_size == 1:
            yield
            return
        self._over.clear()
        atexit.unregister(_disconnect)
        atexit.register(_disconnect)
        if self._is_launched_by_fabric:
            os.environ.setdefault(_LAUNCHER, str(os.getpid()))
            threading.Thread(target=self._look, name="process-watch", daemon=True).start()
        try:
            yield
            self._fabric.barrier()  # else one that is done would be taken for lost
        except RuntimeError as error:
            if not _is_of_a_collective(error):
                raise
            raise LostProcessError(self._message(error)) from error
        finally:
            self._over.set()

    @property
    def _is_launched_by_fabric(self) -> bool:
        launcher = self._fabric.strategy.launcher
        return isinstance(getattr(launcher, "cluster_environment", None), LightningEnvironment)

    def _look(self) -> None:
        while not self._over.wait(_PERIOD):
            self._lost = self._find_lost()
            if self._lost:
                self._found.set()
                if not self._over.wait(_GRACE):
                    self._end()
                return

    def _find_lost(self) -> str:
        """Which process is gone, and how it ended; empty while all live."""
        if (launcher := int(os.environ[_LAUNCHER])) != os.getpid():
            if os.getppid() == launcher:
                return ""
            return f"Process {self._fabric.global_rank - self._fabric.local_rank} ended."
        # Taken away from Fabric's own observer, which would kill this process without a word, and also at the end of a
        # run that was interrupted in good order: the others end with another code than 0 then.
        procs: list[Any] = getattr(self._fabric.strategy.launcher, "procs", [])
        while procs:
            self._children.append(procs.pop(0))
        for number, child in enumerate(self._children, start=1):
            code = child.poll()
            if code is not None:
                return f"Process {self._fabric.global_rank + number} {_how_it_ended(code)}."
        return ""

    def _end(self) -> None:
        """End this process, which waits or works and does not know yet, and those it launched."""
        print(f"lfl: error in process {self._fabric.global_rank}: {self._message()}", file=sys.stderr, flush=True)
        for child in self._children:
            child.kill()
        os._exit(1)

    def _message(self, error: Exception | None = None) -> str:
        if self._is_launched_by_fabric:
            self._found.wait(_PATIENCE)
        lost = self._lost or f"Another process of the run is gone ({_reason(error)}): see its own message."
        return f"{lost} {self._advice()}"


def _disconnect() -> None:
    """Before Python is gone: threads of gloo that outlive it may abort the process (exit code -6)."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _is_of_a_collective(error: RuntimeError) -> bool:
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


def _reason(error: Exception | None) -> str:
    """The heart of an error of gloo, ``[.../pair.cc:545] Read error [...]: Connection reset by peer. This is ...``."""
    return re.sub(r"^\[\S+\] ", "", str(error).partition("\n")[0]).partition(". ")[0].rstrip(".")


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}: see its own message"
    return f"was killed by signal {-code} ({signal.Signals(-code).name})"
