"""Sums over processes: one all-reduce adds up all the tensors of a round."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from lfl.processes.group import Processes

Name = str | tuple[str, str]  # one object uses one of the two, since names are sorted
_Shape = tuple[int, ...]


class ProcessSums:
    """Adds up named float64 tensors over the processes, once per round, usually with a single all-reduce.

    Processes may have different names: one that trained no client has none. Every process remembers the names and
    shapes of the last call, which are the same on all of them, so a call need not send them. The buffer of the
    all-reduce is ``[misfit, holders of each name ..., tensors ...]``:

    - ``misfit`` is 1 on a process that has a name or a shape that is not remembered. If its sum is above 0, every
      process sees that, all exchange their names and shapes, and the all-reduce is repeated.
    - The holders are 1 for each name that this process has. If their sum is 0, nobody has the name any more.

    With one process nothing is sent, and the result is the input.

    Args:
        processes: the processes, which have been started.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._shapes: dict[Name, _Shape] = {}  # of the last call; the same, in the same order, on every process

    @property
    def num_processes(self) -> int:
        """Number of processes."""
        return self._processes.count

    def join(self, sums: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        """Add up the tensors over the processes; every process must call it.

        Args:
            sums: this process's tensors (float64) by name; the names are all strings or all pairs of strings.

        Returns:
            The sum of each tensor that at least one process has, by name; the same on every process.
        """
        if self._processes.count == 1:
            return dict(sums)
        shapes = {name: tuple(value.shape) for name, value in sums.items()}
        fits = all(self._shapes.get(name) == shape for name, shape in shapes.items())
        # A process whose tensors do not fit takes part all the same, with zeros: the buffers of all processes must
        # have the same length, or the all-reduce would hang or fail.
        has_misfit, joined = self._reduce(sums if fits else {}, is_misfit=not fits)
        if has_misfit:
            gathered = [item for shapes in self._processes.gather(shapes) for item in shapes.items()]
            self._shapes = dict(sorted(gathered))  # sorted, so that all processes lay out the buffer alike
            _, joined = self._reduce(sums, is_misfit=False)
        # A name that nobody had this time is not sent next time; if it comes back, it is a misfit.
        self._shapes = {name: self._shapes[name] for name in joined}
        return joined

    def _reduce(self, sums: Mapping[Any, Tensor], is_misfit: bool) -> tuple[bool, dict[Name, Tensor]]:
        """Do one all-reduce; returns whether any process has a misfit, and the sums by name over all processes."""
        names = list(self._shapes)
        header = [float(is_misfit), *(float(name in sums) for name in names)]
        pieces = [torch.tensor(header, dtype=torch.float64, device=self._processes.device)]
        for name, shape in self._shapes.items():
            pieces.append(sums[name].reshape(-1) if name in sums else pieces[0].new_zeros(shape).reshape(-1))
        buffer = torch.cat(pieces)
        torch.distributed.all_reduce(buffer)  # not Fabric's: it waits in a barrier first, which takes as long again
        summed_header, *tensors = buffer.split([piece.numel() for piece in pieces])
        num_misfits, *holders = summed_header.tolist()
        joined = zip(names, tensors, holders, strict=True)
        return num_misfits > 0, {name: tensor.reshape(self._shapes[name]) for name, tensor, count in joined if count}
