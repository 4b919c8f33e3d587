"""A step that is recorded once for each shape of its arguments, and replayed."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lfl.engine.graph.record import Step, leaves_of, record
from lfl.engine.graph.replay import Replay, replay_of

# How far a gradient added by a matrix product may be from the same in two operations, of the largest number.
_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4}


DIFFERS = (
    "The training step, recorded and replayed, gives other numbers than the step itself: it depends on something "
    "besides its batch and parameters. Use `trainer.trace_steps=false`."
)


class TraceError(RuntimeError):
    """A recorded step does not do what the step does."""


class TracedStep:
    """A step as the list of its tensor operations, recorded for each shape of its arguments.

    For small models most of a step's time goes into vmap and modules, not into arithmetic. The recorded operations
    are the same ones, in the same order, without those that change nothing, and give the same bits. What is not a
    tensor is recorded as it was at the first call: a step that reads ``batch_idx``, ``current_epoch``, the time or a
    Python counter must not be recorded. The second call of every shape is therefore computed both ways and compared.

    Args:
        step: from parameters [G, D], tensors and nests of tensors to gradients, losses and logged values.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._recorded: dict[Any, tuple[Replay, tuple[str, ...]]] = {}
        self._descents: dict[Any, tuple[Replay, tuple[str, ...]]] = {}
        self._trusted: set[Any] = set()

    def __call__(self, *arguments: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The step's result."""
        leaves = leaves_of(arguments)
        shape = shape_of(leaves)
        if shape not in self._recorded:
            recorded, names = record(self._step, arguments)
            self._recorded[shape] = replay_of(recorded), names
            return self._step(*arguments)
        replay, names = self._recorded[shape]
        gradients, losses, *logged = replay(*leaves)
        result = gradients, losses, dict(zip(names, logged, strict=True))
        if shape not in self._trusted:
            _compare(result, self._step(*arguments))
            self._trusted.add(shape)
        return result

    def descend(self, rate: float, params: Tensor, *arguments: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Take the step of plain SGD, ``params -= rate * gradients``, in place; returns losses and logged values.

        A gradient that is a product of two matrices is added to its parameters by the multiplication itself: no
        gradient is written and read again. Where that happens the numbers differ from the two operations by rounding;
        they are the same at every call, the first of each shape included, which is compared with the step itself.
        """
        leaves = [params, *leaves_of(arguments)]
        shape = shape_of(leaves)
        if shape not in self._descents:
            recorded, names = record(self._step, (params, *arguments), descend=True)
            self._descents[shape] = replay_of(recorded), names
            self._check_descent(shape, leaves, self._step(params, *arguments))
        return self._replay_descent(shape, leaves, rate)

    def _check_descent(
        self, shape: Any, leaves: list[Tensor], computed: tuple[Tensor, Tensor, dict[str, Tensor]]
    ) -> None:
        """Compare with the step itself, on the side, at a rate that moves parameters as far as the largest one is."""
        gradients, losses, logs = computed
        params, largest = leaves[0].clone(), float(gradients.abs().max())
        size = max(1.0, float(params.abs().max()))
        rate = size / largest if largest else 1.0
        expected = params - rate * gradients
        found = self._replay_descent(shape, [params, *leaves[1:]], rate)
        _compare(found, (losses, logs))
        _compare(params, expected, within=_TOLERANCE[params.dtype] * size)

    def _replay_descent(self, shape: Any, leaves: list[Tensor], rate: float) -> tuple[Tensor, dict[str, Tensor]]:
        replay, names = self._descents[shape]
        losses, *logged = replay(*leaves, -rate)
        return losses, dict(zip(names, logged, strict=True))


def shape_of(leaves: list[Tensor]) -> Any:
    """What a recording is good for: shapes and types."""
    return tuple([(leaf.shape, leaf.dtype) for leaf in leaves])


def _compare(replayed: Any, computed: Any, within: float = 0.0) -> None:
    """Raise unless the two agree to the bit, or to ``within``."""
    pairs = zip(tree_leaves(replayed), tree_leaves(computed), strict=True)
    if not all(torch.allclose(a, b, rtol=0.0, atol=within, equal_nan=True) for a, b in pairs):
        raise TraceError(DIFFERS)
