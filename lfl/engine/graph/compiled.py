"""Recorded steps made into kernels by torch.compile; on a GPU, launched as CUDA graphs."""

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor, fx
from typing_extensions import override

from lfl.client.step import StepInput, StepResult
from lfl.data.nests import without_riders
from lfl.engine.graph.record import leaves_of
from lfl.engine.graph.replay import Replay
from lfl.engine.graph.traced import DIFFERS, TracedStep, TraceError, shape_of

# How far a compiled step may be from the step, in norm: single entries jump where rounding decides a maximum or a ReLU.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_LOW_PRECISION = 0.05  # where parts are computed in 16 bits: kernels round less often
_MANY_SHAPES = 8


class CompiledStep(TracedStep):
    """A recorded step, compiled for each shape of its arguments.

    Kernels add in another order than the operations one by one: the numbers are the same to rounding, and the same at
    every call. Compiling takes seconds a shape. The first call of every shape is compared with the step itself.

    Args:
        step: as in ``TracedStep``, and the others: what is asked for by name does not wait.
    """

    @override
    def __call__(self, params: Tensor, input: StepInput) -> StepResult:
        input = input._replace(batch=without_riders(input.batch))
        leaves = leaves_of(params, input)
        shape = shape_of(leaves)
        self.has_replayed = shape in self._recorded
        if not self.has_replayed:
            self._recorded[shape] = self._compile(params, input, leaves)
        replay, names = self._recorded[shape]
        gradients, losses, *logged = replay(*leaves)
        return StepResult(gradients, losses, dict(zip(names, logged, strict=True)))

    @override
    def descend(self, rate: float, params: Tensor, input: StepInput) -> tuple[Tensor, dict[str, Tensor]]:
        # Not the recording with descent: it calls functions of ours that write in place, and is no list for a compiler.
        result = self(params, input)
        params.sub_(result.gradients, alpha=rate)
        return result.losses, result.logs

    def _compile(self, params: Tensor, input: StepInput, leaves: list[Tensor]) -> tuple[Replay, tuple[str, ...]]:
        """The kernels for one shape, and the names of what is logged."""
        recorded, names = self._record(params, input)
        recorded.recompile()
        replay = _compiled(recorded, on_gpu=leaves[0].device.type == "cuda")
        try:
            results = replay(*leaves)
        except torch.OutOfMemoryError:
            raise  # a smaller cohort may fit
        except Exception as failure:
            raise TraceError(
                f"`trace_steps=compile`: torch.compile cannot compile the training step ({type(failure).__name__}: "
                f"{str(failure).strip().splitlines()[0][:200]}). On a CPU it needs a C++ compiler; `trace_steps=true` "
                "does without."
            ) from failure
        exact = self._computed(params, input)
        # Not of logged values, which may jump, as an accuracy does.
        error = max(_relative_error(results[0], exact.gradients), _relative_error(results[1], exact.losses))
        if error > _tolerance(recorded, exact.gradients.dtype):
            raise TraceError(DIFFERS)
        if len(self._recorded) == _MANY_SHAPES:
            rank_zero_warn(
                f"`trace_steps=compile` has compiled {_MANY_SHAPES + 1} shapes of batches, which took seconds each, "
                "and will compile whatever others come. `trace_steps=true` needs no time for that."
            )
        return replay, names


def _compiled(recorded: fx.GraphModule, on_gpu: bool) -> Replay:
    # "reduce-overhead" launches kernels as one CUDA graph, which small steps need more than faster kernels.
    run = torch.compile(recorded, fullgraph=True, dynamic=False, mode="reduce-overhead" if on_gpu else "default")

    def replay(*leaves: Tensor) -> list[Tensor]:
        if on_gpu:
            # Without this, torch takes calls that follow each other for parts of one step, and keeps all their memory.
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            results: list[Tensor] = run(*leaves)
        # A CUDA graph writes its results to the same place at every call.
        return [result.clone() for result in results] if on_gpu else results

    return replay


def _relative_error(ours: Tensor, exact: Tensor) -> float:
    """``|ours - exact| / |exact|``, a number; what is not finite in both is left out."""
    difference = torch.linalg.vector_norm((ours - exact).nan_to_num(0.0, 0.0, 0.0))
    size = torch.linalg.vector_norm(exact.nan_to_num(0.0, 0.0, 0.0))
    return float(difference / size.clamp(min=torch.finfo(size.dtype).tiny))


def _tolerance(recorded: fx.GraphModule, dtype: torch.dtype) -> float:
    """The largest relative error of a step; larger where some part of it is computed in 16 bits."""
    values = [node.meta.get("val") for node in recorded.graph.nodes]
    is_low = any(isinstance(v, Tensor) and v.is_floating_point() and v.dtype.itemsize < 4 for v in values)
    return _LOW_PRECISION if is_low else _TOLERANCE[dtype]
