"""Values that the code of a step may read while it is recorded: those that are the same at every call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_slot
from torch.utils._python_dispatch import TorchDispatchMode

_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)


class ConstantReads(TorchDispatchMode):
    """Lets Python read numbers that are made of nothing but numbers, such as whether a mask of zeros is one.

    torch's tracer refuses every read of a tensor, for it would keep what it read. What depends on no argument and on
    nothing that the module holds is the same at every call of a shape, and may be kept.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and _is_constant(args[0]):
            with disable_proxy_modes_tracing():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _is_constant(tensor: Tensor) -> bool:
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    if slot is None:
        return False  # what the module holds
    node = slot.proxy.node
    made_of = {node, *_sources(node)}
    # What is written into one of them is not seen in others that share its memory.
    for write in filter(_writes, node.graph.nodes):
        if made_of & {write.args[0], *_sources(write.args[0])}:
            made_of |= set(_sources(write))
    return all(map(_is_made_of_numbers, made_of))


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """Everything that a node was computed from, directly or not."""
    waiting, seen = list(node.all_input_nodes), set()
    while waiting:
        source = waiting.pop()
        if source not in seen:
            seen.add(source)
            waiting += source.all_input_nodes
            yield source


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_made_of_numbers(node: fx.Node) -> bool:
    """Whether a node is neither an argument nor something that the module holds, and draws nothing."""
    if node.op != "call_function":
        return False
    return not (isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags)
