"""The processes of a run, as one of them sees the others."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed
from lightning.fabric import Fabric
from torch import Tensor

T = TypeVar("T")


class Processes:
    """The processes that Fabric started, each on a device of its own; one process is the ordinary case.

    Args:
        fabric: its processes need not be started yet.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric

    @property
    def count(self) -> int:
        """Number of processes."""
        return self._fabric.world_size

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return self._fabric.global_rank

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and talks to people."""
        return self._fabric.global_rank == 0

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._fabric.device

    def at_home(self, ids: Tensor) -> Tensor:
        """Mask [C] of the clients ``ids`` [C] whose rows this process keeps."""
        return ids % self.count == self.rank

    def gather(self, value: T) -> list[T]:
        """Values of all processes, in order of rank; every process must call it."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, value)
        return found

    def ask_first(self, question: Callable[[], T]) -> T:
        """The first process's answer, on all processes; every process must call it."""
        return self._fabric.broadcast(question() if self.is_first else None)  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait for all processes."""
        self._fabric.barrier()


def process_name() -> str:
    """``process 1``, or nothing where there is one process."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return ""
    return f"process {torch.distributed.get_rank()}" if torch.distributed.get_world_size() > 1 else ""
