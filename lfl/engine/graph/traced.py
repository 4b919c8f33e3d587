"""A step that is recorded once for each shape of its arguments, and replayed."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from lfl.client.step import StepFunction, StepInput, StepResult
from lfl.data.nests import without_riders
from lfl.engine.graph.record import leaves_of, record
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

    The recorded operations are the same ones, in the same order, without those that change nothing, and give the same
    bits. What is not a tensor is recorded as it was at the first call: a step that reads ``batch_idx``,
    ``current_epoch``, the time or a Python counter must not be recorded. The calls 2, 4, 8, ... of every recording are
    therefore computed both ways and compared. (The first one would not tell: it is what has been recorded.)

    Recording takes as long as some hundred steps of a small model. A shape that comes less often is better computed
    each time; with patience it is recorded when it has come so often that recording would have paid.

    Args:
        step: a pure function.
        plain: computes the same, faster where nothing is recorded; None for ``step`` itself.
        patience: how many calls of a shape are computed before it is recorded.

    Attributes:
        has_replayed: whether the last call took no more than a replay: it neither computed nor recorded or compared.
    """

    def __init__(self, step: StepFunction, plain: StepFunction | None = None, patience: int = 0) -> None:
        self._step, self._plain, self._patience = step, plain or step, patience
        self._recorded: dict[Any, tuple[Replay, tuple[str, ...]]] = {}  # by shape, with the names of logged values
        self._descents: dict[Any, tuple[Replay, tuple[str, ...]]] = {}  # likewise, with the step of plain SGD
        self._calls: Counter[Any] = Counter()  # of each shape, until it was recorded
        self._replays: Counter[Any] = Counter()  # calls of each recording, the one in which it was made included
        self.has_replayed = False

    def __call__(self, params: Tensor, input: StepInput) -> StepResult:
        """The step's result."""
        input = input._replace(batch=without_riders(input.batch))
        leaves = leaves_of(params, input)
        shape = shape_of(leaves)
        self.has_replayed = False
        if shape not in self._recorded:
            self._calls[shape] += 1
            if self._calls[shape] <= self._patience:
                return self._plain(params, input)
            recorded, names = self._record(params, input)
            self._recorded[shape] = replay_of(recorded), names
            self._is_to_compare(shape)
            return self._computed(params, input)
        replay, names = self._recorded[shape]
        gradients, losses, *logged = replay(*leaves)
        result = StepResult(gradients, losses, dict(zip(names, logged, strict=True)))
        if self._is_to_compare(shape):
            _compare(result, self._computed(params, input))
        else:
            self.has_replayed = True
        return result

    def _is_to_compare(self, recording: Any) -> bool:
        """Whether this call of a recording is to be compared: call 1 (where it was made), 2, 4, 8, ..."""
        self._replays[recording] += 1
        return self._replays[recording] & (self._replays[recording] - 1) == 0

    def _record(
        self, params: Tensor, input: StepInput, descend: bool = False
    ) -> tuple[fx.GraphModule, tuple[str, ...]]:
        """Record the step; raises TraceError if that cannot be done, or the step's own error if it has one."""
        try:
            return record(self._step, params, input, descend)
        except torch.OutOfMemoryError:
            raise  # a smaller cohort may fit
        except Exception as failure:
            self._computed(params, input)
            reason = str(failure).strip().splitlines()[0][:200]
            raise TraceError(
                f"`trace_steps` cannot record the step of this module ({type(failure).__name__}: {reason}). Leave it "
                "out."
            ) from failure

    def _computed(self, params: Tensor, input: StepInput) -> StepResult:
        """The step itself, of the number that recordings have."""
        return self._step(params, input._replace(number=0))

    def descend(self, rate: float, params: Tensor, input: StepInput) -> tuple[Tensor, dict[str, Tensor]]:
        """Take the step of plain SGD, ``params -= rate * gradients``, in place; returns losses and logged values.

        A gradient that is a product of two matrices is added to its parameters by the multiplication itself: no
        gradient is written and read again. Where that happens the numbers differ from the two operations by rounding;
        they are the same at every call, the first of each shape included. It does not wait for a shape to come again.
        """
        input = input._replace(batch=without_riders(input.batch))
        leaves = leaves_of(params, input)
        shape = shape_of(leaves)
        if shape not in self._descents:
            recorded, names = self._record(params, input, descend=True)
            self._descents[shape] = replay_of(recorded), names
        self.has_replayed = not self._is_to_compare(("descent", shape))
        if not self.has_replayed:
            self._check_descent(shape, leaves, self._computed(params, input))
        return self._replay_descent(shape, leaves, rate)

    def _check_descent(self, shape: Any, leaves: list[Tensor], computed: StepResult) -> None:
        """Compare with the step itself, on copies of the parameters.

        At a rate that moves some parameter as far as the largest one is: at the rates that are used, a wrong gradient
        would drown in the tolerance.
        """
        params, largest = leaves[0].clone(), float(computed.gradients.abs().max())
        size = max(1.0, float(params.abs().max()))
        rate = size / largest if largest else 1.0
        expected = params - rate * computed.gradients
        replayed = self._replay_descent(shape, [params, *leaves[1:]], rate)
        _compare(replayed, (computed.losses, computed.logs))
        _compare(params, expected, within=_TOLERANCE[params.dtype] * size)

    def _replay_descent(self, shape: Any, leaves: list[Tensor], rate: float) -> tuple[Tensor, dict[str, Tensor]]:
        replay, names = self._descents[shape]
        losses, *logged = replay(*leaves, -rate)
        return losses, dict(zip(names, logged, strict=True))


def shape_of(leaves: list[Tensor]) -> Any:
    """The shapes and types that a recording is good for."""
    # Not devices, which a run does not change, nor strides: operations read those of their arguments at each call.
    return tuple([(leaf.shape, leaf.dtype) for leaf in leaves])


def _compare(replayed: Any, computed: Any, within: float = 0.0) -> None:
    """Raise unless the two agree to the bit, or to ``within``."""
    pairs = zip(tree_leaves(replayed), tree_leaves(computed), strict=True)
    if not all(_agree(a, b, within) for a, b in pairs):
        raise TraceError(DIFFERS)


def _agree(a: Tensor, b: Tensor, within: float) -> bool:
    # The largest difference, which is NaN where a number is, is found in a third of the time of `allclose`.
    is_near = a.shape == b.shape and a.is_floating_point() and a.numel() > 0
    if is_near and float((a - b).abs_().max()) <= within:
        return True
    return torch.allclose(a, b, rtol=0.0, atol=within, equal_nan=True)
