"""Listing the operations of a client's loss, each with the line of the user's program that it comes from."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import lightning
import torch
import torch.nn.functional as F
import torchmetrics
from torch import Tensor, fx
from torch.autograd.function import BackwardCFunction
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

import lfl.client
from lfl.engine.graph.shapes import one_fake_mode

Outputs = dict[str, Tensor]
"""Results of a step, without dimensions, by their names in a sentence, such as "its loss"."""

_LIBRARIES = tuple(str(Path(str(module.__file__)).parent) for module in (torch, lightning, torchmetrics, lfl.client))
_LIBRARIES += (str(Path(__file__).parent),)
_READERS = (Tensor.tolist, Tensor.numpy, Tensor.__array__)  # they would make constants of the batch


class Listing:
    """The operations of a step on one batch, with the lines of the user's program that they come from.

    Attributes:
        recorded: the operations, from parameters and the leaves of the batch to the outputs.
        outputs: by name, as they came out.
        gradients: names of autograd functions, and of hooks, whose gradients are not among the operations.
    """

    def __init__(self, step: Callable[..., Outputs], params: Tensor, leaves: list[Tensor]) -> None:
        self.outputs: Outputs = {}
        self.gradients: list[str] = []

        def flat(*arguments: Tensor) -> list[Tensor]:
            with _UsersLines() as lines:
                self.outputs = step(*arguments)
            self.gradients = [*lines.hooks, *_own_functions(self.outputs.values())]
            return list(self.outputs.values())

        with traceback.preserve_node_meta(), one_fake_mode():
            self.recorded = make_fx(flat)(params, *leaves)

    @property
    def nodes(self) -> list[fx.Node]:
        """The operations in order."""
        return list(self.recorded.graph.nodes)

    def constant(self, name: str) -> Tensor:
        """A tensor that is held, or was made of numbers."""
        owner, _, leaf = name.rpartition(".")
        value: Tensor = getattr(self.recorded.get_submodule(owner), leaf)
        return value


class _UsersLines(TorchFunctionMode):
    """Writes the line of the user's program onto each operation that a listing records."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[str] = []

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.register_hook:
            self.hooks.append("Tensor.register_hook")
        if func in _READERS:
            raise ValueError(f"`{func.__name__}` reads the values of a tensor")
        traceback.set_stack_trace([_users_line()])
        # torch's own reads the largest class, which a listing cannot; under vmap it computes this.
        return _one_hot(*args, **(kwargs or {})) if func is F.one_hot else func(*args, **(kwargs or {}))


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes < 0:
        raise ValueError("`one_hot` without `num_classes` depends on the largest class of a batch")
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


def _users_line() -> str:
    """File and line of the innermost caller outside of the libraries."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_LIBRARIES):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _own_functions(outputs: Any) -> Iterator[str]:
    """Names of the autograd functions written in Python that outputs come from."""
    waiting, seen = [output.grad_fn for output in outputs], set()
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if isinstance(function, BackwardCFunction):
            yield type(function).__name__
        waiting += [source for source, _ in function.next_functions]
