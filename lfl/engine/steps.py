"""The functions that compute a step: plain or recorded, timed, and compared with a step of single clients."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from lfl.client.step import LocalStep, StepFunction, StepInput, StepResult, StepTime
from lfl.engine.graph.compiled import CompiledStep
from lfl.engine.graph.traced import TracedStep
from lfl.engine.watch import StepFailure, StepWatch


@dataclass(frozen=True)
class Descents:
    """The recorded steps that include the step of plain SGD.

    They differ from others by rounding. So which ones do must follow from the round and the batch alone: a run that is
    resumed, or shared by processes, gives the same numbers.

    Attributes:
        first_round: the first round with such steps.
        width: number of examples of their batches; 0 for any.
    """

    first_round: int = 1
    width: int = 0

    def include(self, step: LocalStep) -> bool:
        """Whether a step is one of them, by its batches."""
        return not self.width or all(part.plan.indices.shape[1] == self.width for part in step.batches)


ALL = Descents()
"""All recorded steps."""


class StepFunctions:
    """Computes steps by the functions of an engine, and keeps what others want to know of them.

    Args:
        compute: computes a step in the engine's own way.
        pure: the same as a pure function of its arguments, which can be recorded.
        quick: ``pure`` in the way that is fastest without a recording.
        num_phases: of the local work.

    Attributes:
        of_phases: one function per phase, as recordings differ: a recorded step holds which parameters are frozen.
        whole: that of passes over all examples, which freeze nothing and have a recording of their own.
        compiles: whether steps are recorded and compiled.
        patience: how many batches of a shape must have come before it is recorded.
        watch: compares some steps with those of one client at a time; None for no comparison.
        failure: what a step last raised, with its parameters and its input.
        times: what the steps so far have taken; None where nobody wants to know.
    """

    def __init__(self, compute: StepFunction, pure: StepFunction, quick: StepFunction, num_phases: int) -> None:
        self._pure, self._quick = pure, quick
        self.of_phases: list[StepFunction] = [compute] * num_phases
        self.whole: StepFunction = compute
        self.compiles = False
        self.patience = 0
        self.watch: StepWatch | None = None
        self.failure: StepFailure | None = None
        self.times: list[StepTime] | None = None

    @property
    def are_recorded(self) -> bool:
        """Whether steps are recorded and replayed."""
        return isinstance(self.whole, TracedStep)

    def record(self, compile: bool = False, patience: int = 0) -> None:
        """Record the step once for each shape of batch, and replay the recording from then on.

        Args:
            compile: make kernels of the recording with ``torch.compile``.
            patience: how many batches of a shape must have come before it is recorded.
        """

        def traced() -> TracedStep:
            return CompiledStep(self._pure) if compile else TracedStep(self._pure, self._quick, patience)

        self.of_phases = [traced() for _ in self.of_phases]
        self.whole = traced()
        self.compiles, self.patience = compile, patience

    def compute(self, phase: int, params: Tensor, input: StepInput) -> StepResult:
        """Compute the gradients of G clients with parameters [G, D] in a phase of the local work."""
        started, function = time.perf_counter(), self.of_phases[phase]
        try:
            result = function(params, input)
        except torch.OutOfMemoryError:
            raise  # not kept: the error's traceback keeps the tensors of the step alive
        except Exception as error:
            self.failure = StepFailure(error, phase, params, input)
            raise
        self._note_time(function, started)
        if self.watch is not None and self.watch.is_due():
            self.watch.check(phase, params, input, result)
        return result

    def descend(self, phase: int, rate: float, params: Tensor, input: StepInput) -> tuple[Tensor, dict[str, Tensor]]:
        """Take a recorded step of plain SGD, ``params -= rate * gradients``, in place; return losses [G] and logs."""
        function = self.of_phases[phase]
        assert isinstance(function, TracedStep)
        before = params.clone() if self.watch is not None and self.watch.is_due() else None
        started = time.perf_counter()
        try:
            losses, logs = function.descend(rate, params, input)
        except torch.OutOfMemoryError:
            raise  # as above
        except Exception as error:
            self.failure = StepFailure(error, phase, params, input)
            raise
        self._note_time(function, started)
        if before is not None and self.watch is not None:
            self.watch.check_descent(phase, before, params, rate, input, StepResult(params, losses, logs))
        return losses, logs

    def _note_time(self, function: StepFunction, started: float) -> None:
        if self.times is not None:
            is_replayed = isinstance(function, TracedStep) and function.has_replayed
            self.times.append(StepTime(time.perf_counter() - started, is_replayed))
