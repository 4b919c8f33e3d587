"""Sums over processes: one all-reduce joins whatever each of them has added up."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from lfl.processes.group import Processes

Name = str | tuple[str, str]  # of one kind in one object
_Shape = tuple[int, ...]


class ProcessSums:
    """Sums of named float64 tensors over the processes, time after time, in one all-reduce each.

    A process may lack names that others have, or have none. As long as names and shapes are among those of the last
    time, they are known: the buffer is ``[misfits, how many processes have each name, the tensors]``. A process that
    has anything else says so by its 1 in the first place, sees what the others say by the sum, and all exchange their
    names and reduce again. One process: what comes in comes out.

    Args:
        processes: started.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._shapes: dict[Name, _Shape] = {}  # of the last time, the same on every process

    @property
    def num_processes(self) -> int:
        """How many processes add up."""
        return self._processes.count

    def join(self, sums: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        """The sums over processes of all names that any process has; every process must call it.

        Names are strings, or pairs of strings; all of one kind.
        """
        if self._processes.count == 1:
            return dict(sums)
        shapes = {name: tuple(value.shape) for name, value in sums.items()}
        fits = all(self._shapes.get(name) == shape for name, shape in shapes.items())
        misfits, joined = self._reduce(sums if fits else {}, misfits=not fits)
        if misfits:
            found = [item for part in self._processes.gather(shapes) for item in part.items()]
            self._shapes = dict(sorted(found))
            _, joined = self._reduce(sums, misfits=False)
        # What nobody had this time is not sent next time.
        self._shapes = {name: self._shapes[name] for name in joined}
        return joined

    def _reduce(self, sums: Mapping[Any, Tensor], misfits: bool) -> tuple[bool, dict[Name, Tensor]]:
        """Whether anybody has what does not fit, and the sums of those names that anybody has."""
        names = list(self._shapes)
        header = [float(misfits), *(float(name in sums) for name in names)]
        parts = [torch.tensor(header, dtype=torch.float64, device=self._processes.device)]
        for name, shape in self._shapes.items():
            parts.append(sums[name].reshape(-1) if name in sums else parts[0].new_zeros(shape).reshape(-1))
        flat = torch.cat(parts)
        torch.distributed.all_reduce(flat)  # Fabric's own waits in a barrier before, which takes as long again
        first, *values = flat.split([part.numel() for part in parts])
        anybody, *holders = first.tolist()
        joined = zip(names, values, holders, strict=True)
        return anybody > 0, {name: value.reshape(self._shapes[name]) for name, value, count in joined if count}
