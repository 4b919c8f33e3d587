"""Callbacks that measure what local steps take, in memory and in time, and log it."""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from lfl.callback import FederatedCallback, Gradient
from lfl.client.step import LocalStep
from lfl.round import Cohort, Round

PARTS = ("model", "coordinates", "basis", "controls")
PEAK, MILLISECONDS = "memory/peak", "step/ms"


class MemoryWatch(TorchDispatchMode):
    """Counts the memory of the operations that run inside: what they read that was there before, and what they make.

    Memory that an operation takes for itself and gives back before it ends is not seen.

    Attributes:
        read: the memory that was there before.
        peak: the most bytes that were made inside and alive at the same time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read: set[torch.UntypedStorage] = set()  # kept, so that no other memory takes its place
        self.peak = 0
        self._made: dict[int, int] = {}  # bytes of what was made inside and is alive, by identity

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read |= {memory for memory in memory_of((args, kwargs)) if id(memory) not in self._made}
        result = func(*args, **(kwargs or {}))
        for memory in memory_of(result) - self.read:
            if id(memory) not in self._made:
                self._made[id(memory)] = memory.nbytes()
                weakref.finalize(memory, self._made.pop, id(memory))
        self.peak = max(self.peak, sum(self._made.values()))
        return result


def memory_of(nest: Any) -> set[torch.UntypedStorage]:
    """The memory of all tensors in a nest; views of the same have it once."""
    return {leaf.untyped_storage() for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)}


class StepMemory(FederatedCallback):
    """Logs the bytes of a local step's gradient, with all corrections; the last of the stack, one client at a time.

    What was there before the step and is read in it must be on the device that takes it: the ``model`` (the client's
    own, and x where steps go on from there), ``coordinates`` and the ``basis`` of a subspace, and all else but the
    batch, which are the ``controls``. ``peak`` has these, the batch, and the most that the step makes beside them.
    The largest numbers of a round are logged.
    """

    observes = True

    @override
    def on_round_start(self, round: Round) -> None:
        self._most = dict.fromkeys((*(f"memory/{part}" for part in PARTS), PEAK), 0)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        def watched(values: Tensor, step: LocalStep) -> Tensor:
            with MemoryWatch() as watch:
                result = gradient(values, step)
            self._note(cohort, step, watch)
            return result

        return watched

    def _note(self, cohort: Cohort, step: LocalStep, watch: MemoryWatch) -> None:
        basis = cohort.round.basis
        values = memory_of(cohort.values)
        model = memory_of(cohort.round.server) | (values if basis is None else set())
        parts = {
            "model": model,
            "coordinates": values - model,
            "basis": set() if basis is None else memory_of(vars(basis)),
        }
        known = set().union(*parts.values(), memory_of([batch.batch for batch in step.batches]))
        parts["controls"] = watch.read - known
        found = {f"memory/{part}": _bytes(watch.read & memory) for part, memory in parts.items()}
        found[PEAK] = _bytes(watch.read) + watch.peak
        self._most = {name: max(most, found[name]) for name, most in self._most.items()}

    @override
    def on_round_end(self, round: Round) -> None:
        for name, most in self._most.items():
            round.log(name, most)


def _bytes(memory: set[torch.UntypedStorage]) -> int:
    return sum(part.nbytes() for part in memory)


class StepClock(FederatedCallback):
    """Logs the milliseconds of a local step, a mean over those of a round; the last of the stack.

    A step is all from its batch to the optimizer's step; what callbacks do before the first one and after the last is
    not in it. The time is this process's on the CPU, which other programs lengthen less than that of the clock.
    """

    observes = True

    @override
    def on_round_start(self, round: Round) -> None:
        self._seconds, self._steps = 0.0, 0

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        self._before = time.process_time()

    @override
    def on_step_end(self, cohort: Cohort) -> None:
        now = time.process_time()
        self._seconds += now - self._before
        self._steps += cohort.active
        self._before = now

    @override
    def on_round_end(self, round: Round) -> None:
        round.log(MILLISECONDS, 1000 * self._seconds / max(1, self._steps))
