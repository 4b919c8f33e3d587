"""The processes of a run: how many there are, which one this is, and how they exchange values."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed
from lightning.fabric import Fabric
from torch import Tensor

T = TypeVar("T")


class Processes:
    """The processes that Fabric started, one per device. A run in a single process is the usual case.

    Args:
        fabric: Fabric; its processes need not be started yet.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric

    @property
    def count(self) -> int:
        """Number of processes."""
        return self._fabric.world_size

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        return self._fabric.global_rank

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and prints messages (rank 0)."""
        return self._fabric.global_rank == 0

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._fabric.device

    def at_home(self, ids: Tensor) -> Tensor:
        """Mask [C] of those clients ``ids`` [C] whose rows this process keeps."""
        # The same in every round: a client's rows are never sent to another process.
        return ids % self.count == self.rank

    def gather(self, value: T) -> list[T]:
        """Collect one value from each process, in order of rank; every process must call it."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(values, value)
        return values

    def ask_first(self, question: Callable[[], T]) -> T:
        """Call ``question`` on the first process and return its answer on all; every process must call it."""
        return self._fabric.broadcast(question() if self.is_first else None)  # type: ignore[return-value]

    def barrier(self) -> None:
        """Wait for all processes."""
        self._fabric.barrier()


def process_name() -> str:
    """The name of this process for messages, such as ``process 1``; empty if there is only one process."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return ""
    return f"process {torch.distributed.get_rank()}" if torch.distributed.get_world_size() > 1 else ""
