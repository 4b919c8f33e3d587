"""Several processes share the clients of a round; one all-reduce a round joins what they found."""

from typing import Any

import torch
import torch.distributed
from lightning.fabric import Fabric
from torch import Tensor

_Shape = tuple[int, ...]


class ProcessSums:
    """Sums of named float64 tensors over the processes, time after time, in one all-reduce each.

    A process may lack names that others have, or have none. As long as names and shapes are among those of the last
    time, they are known: the buffer is ``[misfits, how many processes have each name, the tensors]``. A process that
    has anything else says so by its 1 in the first place, sees what the others say by the sum, and all exchange their
    names and reduce again. One process: what comes in comes out.

    Args:
        fabric: with the processes started.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._shapes: dict[str, _Shape] = {}  # of the last time, the same on every process

    def join(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """The sums over processes of all names that any process has; every process must call it."""
        if self._fabric.world_size == 1:
            return sums
        shapes = {name: tuple(value.shape) for name, value in sums.items()}
        fits = all(self._shapes.get(name) == shape for name, shape in shapes.items())
        misfits, joined = self._reduce(sums if fits else {}, misfits=not fits)
        if misfits:
            found = [item for part in gather_objects(self._fabric, shapes) for item in part.items()]
            self._shapes = dict(sorted(found))
            _, joined = self._reduce(sums, misfits=False)
        # What nobody had this time is not sent next time.
        self._shapes = {name: self._shapes[name] for name in joined}
        return joined

    def _reduce(self, sums: dict[str, Tensor], misfits: bool) -> tuple[bool, dict[str, Tensor]]:
        """Whether anybody has what does not fit, and the sums of those names that anybody has."""
        names = list(self._shapes)
        header = [float(misfits), *(float(name in sums) for name in names)]
        parts = [torch.tensor(header, dtype=torch.float64, device=self._fabric.device)]
        for name, shape in self._shapes.items():
            parts.append(sums[name].reshape(-1) if name in sums else parts[0].new_zeros(shape).reshape(-1))
        flat = torch.cat(parts)
        torch.distributed.all_reduce(flat)  # Fabric's own waits in a barrier before, which takes as long again
        first, *values = flat.split([part.numel() for part in parts])
        anybody, *holders = first.tolist()
        joined = zip(names, values, holders, strict=True)
        return anybody > 0, {name: value.reshape(self._shapes[name]) for name, value, count in joined if count}


def gather_objects(fabric: Fabric, value: Any) -> list[Any]:
    """The values of all processes, in order of rank; every process must call it."""
    if fabric.world_size == 1:
        return [value]
    found: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(found, value)
    return found


def process_name() -> str:
    """``process 1``, or nothing where there is one process."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return ""
    return f"process {torch.distributed.get_rank()}" if torch.distributed.get_world_size() > 1 else ""
