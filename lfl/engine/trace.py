"""Recording a local step once and replaying it without Python between its tensor operations."""

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

Step = Callable[..., Any]


class TraceError(RuntimeError):
    """A recorded step does not do what the step does."""


class TracedStep:
    """A step as the list of its tensor operations, recorded for each shape of its arguments.

    For small models most of a step's time goes into vmap and modules, not into arithmetic. The recorded operations
    are the same ones, in the same order, and give the same bits. What is not a tensor is recorded as it was at the
    first call: a step that reads ``batch_idx``, ``current_epoch``, the time or a Python counter must not be recorded.
    The second call of every shape is therefore computed both ways and compared.

    Args:
        step: a function of tensors and nests of tensors.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._recorded: dict[Any, Step] = {}
        self._trusted: set[Any] = set()

    def __call__(self, *arguments: Any) -> Any:
        """The step's result."""
        shape = tuple((leaf.shape, leaf.dtype) for leaf in tree_leaves(arguments))
        if shape not in self._recorded:
            self._recorded[shape] = _record(self._step, arguments)
            return self._step(*arguments)
        with torch.no_grad():
            result = self._recorded[shape](*arguments)
        if shape not in self._trusted:
            self._compare(result, self._step(*arguments))
            self._trusted.add(shape)
        return result

    def _compare(self, replayed: Any, computed: Any) -> None:
        pairs = zip(tree_leaves(replayed), tree_leaves(computed), strict=True)
        if not all(torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True) for a, b in pairs):
            raise TraceError(
                "The training step, recorded and replayed, gives other numbers than the step itself: it depends on "
                "something besides its batch and parameters. Use `trainer.trace_steps=false`."
            )


def _record(step: Step, arguments: Any) -> Step:
    recorded = make_fx(step)(*arguments)
    recorded.graph.eliminate_dead_code()
    recorded.recompile()
    forward: Step = recorded.forward
    return forward
