"""The number of threads with which torch computes a run.

torch takes one per core. For the small operations of most local steps that is slower than one: threads wait for each
other at the end of every operation, and where other processes keep a core busy, for the scheduler to come around, which
takes longer than the operation by orders of magnitude. So a run computes with one thread until more are seen to be
clearly faster on its own steps (``select``), and the number is put back at its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Threads:
    """The number of torch's threads in the runs of a trainer.

    Args:
        number: of threads, as the user wants it; None to leave it to the environment's variables and, where there are
            none, to the run.

    Attributes:
        most: how many threads a run may choose; 1 where it has no choice.
    """

    def __init__(self, number: int | None) -> None:
        self.most = 1
        self._number = number
        # Looked at now, since Lightning sets them when it starts processes.
        self._is_given = is_number_given()
        self._available = 1

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put torch's number back at the end."""
        before = self._available = torch.get_num_threads()
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def start(self, device: torch.device, processes: int, ask: Callable[[Callable[[], Any]], Any]) -> None:
        """Begin with the number that the user wants or, where a run may choose, with one; inside of ``kept``.

        Args:
            device: what the run computes on.
            processes: how many share this machine.
            ask: answers a question with the same answer on all processes: those that Lightning has started find its
                variables in their environment, and not what their user has set.
        """
        self.most = 1
        number, is_given, available = ask(lambda: (self._number, self._is_given, self._available))
        if number is not None:
            torch.set_num_threads(number)
        elif device.type == "cpu" and not is_given:
            self.most = max(1, available // processes)
            torch.set_num_threads(1)


def is_number_given() -> bool:
    """Return whether the environment says how many threads torch is to use."""
    return any(os.environ.get(name) for name in _VARIABLES)
