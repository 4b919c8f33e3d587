"""Several processes share the clients of a round; one sum over processes per round joins what they found."""

from typing import Any

import torch
import torch.distributed
from lightning.fabric import Fabric
from torch import Tensor


def sum_over_processes(fabric: Fabric, sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sum float64 tensors by name; a process may lack names that others have. One process: returned as they are."""
    if fabric.world_size == 1:
        return sums
    shapes: dict[str, Any] = {}
    for found in gather_objects(fabric, {name: tuple(value.shape) for name, value in sums.items()}):
        shapes.update(found)
    if not shapes:
        return {}
    names = sorted(shapes)
    zeros = {name: torch.zeros(shapes[name], dtype=torch.float64, device=fabric.device) for name in names}
    flat = torch.cat([sums.get(name, zeros[name]).reshape(-1) for name in names])
    flat = fabric.all_reduce(flat, reduce_op="sum")  # type: ignore[assignment]
    parts = flat.split([zeros[name].numel() for name in names])
    return {name: part.reshape(shapes[name]) for name, part in zip(names, parts, strict=True)}


def max_over_processes(fabric: Fabric, values: list[Tensor]) -> list[Tensor]:
    """Elementwise maximum of integer tensors over the processes."""
    if fabric.world_size == 1:
        return values
    result = []
    for value in values:
        gathered = fabric.all_gather(value.unsqueeze(0))
        assert isinstance(gathered, Tensor)
        result.append(gathered.flatten(0, 1).amax(dim=0).reshape(value.shape))
    return result


def gather_objects(fabric: Fabric, value: Any) -> list[Any]:
    """The values of all processes, in order of rank; every process must call it."""
    if fabric.world_size == 1:
        return [value]
    found: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(found, value)
    return found
