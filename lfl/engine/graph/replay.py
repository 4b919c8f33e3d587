"""A recorded step as a Python function."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten

Replay = Callable[..., list[Tensor]]
# torch's own functions are called in half the time of the same operations by their full names, which go through a
# dispatcher in Python. Both end in the same kernel. The table has what steps of common layers are made of; what is not
# in it is called by its full name.
_SHORT_CUTS = {
    _aten._log_softmax.default: torch._log_softmax,
    _aten._log_softmax_backward_data.default: torch._log_softmax_backward_data,
    _aten.add.Tensor: torch.add,
    _aten.addmm.default: torch.addmm,
    _aten.argmax.default: torch.argmax,
    _aten.convolution.default: torch.convolution,
    _aten.eq.Tensor: torch.eq,
    _aten.gather.default: torch.gather,
    _aten.mean.default: torch.mean,
    _aten.mean.dim: torch.mean,
    _aten.ne.Scalar: torch.ne,
    _aten.neg.default: torch.neg,
    _aten.relu.default: torch.relu,
    _aten.scatter_add.default: torch.scatter_add,
    _aten.select.int: torch.select,
    _aten.split_with_sizes.default: torch.split_with_sizes,
    _aten.t.default: torch.t,
    _aten.unsqueeze.default: torch.unsqueeze,
    _aten.where.self: torch.where,
    _aten.sub.Tensor: torch.sub,
    _aten.mul.Tensor: torch.mul,
    _aten.mul.Scalar: torch.mul,
    _aten.div.Tensor: torch.div,
    _aten.mm.default: torch.mm,
    _aten.bmm.default: torch.bmm,
    _aten.pow.Tensor_Scalar: torch.pow,
    _aten.sum.dim_IntList: torch.sum,
    _aten.transpose.int: torch.transpose,
    _aten.view.default: Tensor.view,
    _aten.expand.default: Tensor.expand,
}


def _max_pool2d(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Max pooling; on a CPU torch's kernel for channels-last images is six times faster, copies included.

    Pooling picks numbers and computes none, so that another kernel gives the same bits. Both take the first of equal
    numbers, so that the indices, and with them the gradient, are the same too.
    """
    if x.device.type != "cpu" or x.dim() != 4:
        found: tuple[Tensor, Tensor] = _aten.max_pool2d_with_indices.default(x, *arguments)
        return found
    values, indices = _aten.max_pool2d_with_indices.default(x.contiguous(memory_format=torch.channels_last), *arguments)
    return values.contiguous(), indices.contiguous()


_SHORT_CUTS[_aten.max_pool2d_with_indices.default] = _max_pool2d


def replay_of(recorded: fx.GraphModule) -> Replay:
    """The operations as a Python function: one line an operation, without the checks of a module's call."""
    for node in recorded.graph.nodes:
        node.target = _SHORT_CUTS.get(node.target, node.target)
    recorded.recompile()
    replay: Replay = recorded.forward
    return replay
