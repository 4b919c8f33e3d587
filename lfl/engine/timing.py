"""The time that steps take, measured before a run on copies of its model."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lfl.callback import FederatedCallback
from lfl.client.model import ClientModel
from lfl.client.schedule import count_calls
from lfl.client.step import Extras, StepInput, StepTime
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.engine.base import LocalEngine
from lfl.engine.graph.traced import TracedStep, TraceError
from lfl.engine.paths import Path
from lfl.randomness import client_keys

_SMALL_STEP = 1e-3  # seconds on one thread: operations of shorter steps are too small to share
_TURNS = 3
_MORE_THREADS = 1.25  # several threads must be so much faster: they are slow where others use the cores, too


@dataclass(frozen=True)
class StepCost:
    """The cost of the steps of a path.

    Attributes:
        engine: takes them.
        batch_size: of the clients.
        alone: seconds of a step of one client.
        each: seconds that one more client in the same step adds.
    """

    engine: LocalEngine
    batch_size: int
    alone: float
    each: float = 0.0

    def of_round(self, sizes: Tensor, steps: Tensor) -> float:
        """Seconds of a round of clients with so many examples and local steps each."""
        if not len(sizes):
            return 0.0
        seconds = 0.0
        for rows in self.engine.order(torch.arange(len(sizes)), steps, sizes).split(self.engine.cohort_size):
            # Clients whose batches have the same size at a step are one call; padded, all clients are.
            calls, members = count_calls(sizes[rows], steps[rows], self.batch_size)
            calls = int(steps[rows].max()) if self.engine.padded_width else calls
            seconds += self.alone * calls + self.each * (members - calls)
        return seconds


@dataclass(frozen=True)
class StepTimer:
    """Times steps; the fields are what an engine is built from."""

    model: ClientModel
    data: FederatedData
    work: LocalWork
    callbacks: list[FederatedCallback]
    seed: int

    def costs(self, *paths: tuple[Path, int]) -> list[StepCost]:
        """The costs of the steps of some paths, timed in turns: a moment in which the machine is busy decides nothing.

        Args:
            paths: each with how many clients are trained together at most; what a path records is recorded at once.
        """
        engines = [(self._engine(path), count) for path, count in paths]
        turns = [
            [(min(self._times(engine, 1)), min(self._times(engine, count))) for engine, count in engines]
            for _ in range(_TURNS)
        ]
        costs = []
        for (engine, count), times in zip(engines, zip(*turns, strict=True), strict=True):
            alone, together = (min(each) for each in zip(*times, strict=True))
            each = max(0.0, together - alone) / (count - 1) if count > 1 else 0.0
            costs.append(StepCost(engine, self.data.batch_size, alone, each))
        return costs

    def step_time(self, path: Path, count: int) -> StepTime:
        """Time a step of ``count`` clients, the least of five; replayed where the path records steps."""
        return StepTime(min(self._times(self._engine(path), count)), bool(path.recording))

    def are_faster(self, threads: int, path: Path, count: int) -> bool:
        """Whether so many threads are clearly faster than one, which torch has now, on steps of ``count`` clients.

        Their usual time is held against the least one of one thread, and twice, so that no accident speaks for them.
        """
        engine = self._engine(path)
        if min(self._times(engine, count)) < _SMALL_STEP:
            return False
        for _ in range(2):
            one = min(self._times(engine, count))
            torch.set_num_threads(threads)
            try:
                # Two at first: they may be slower by orders of magnitude.
                few = min(self._times(engine, count, repeats=2))
                several = few if one < _MORE_THREADS * few else statistics.median(self._times(engine, count))
            finally:
                torch.set_num_threads(1)
            if one < _MORE_THREADS * several:
                return False
        return True

    def _engine(self, path: Path) -> LocalEngine:
        # On a copy, so that nothing is left in the module.
        def engine(path: Path) -> LocalEngine:
            return path.engine(self.model.copy(), self.data, self.work, self.callbacks, self.seed)

        recorded = engine(path.at_once)
        if path.recording:  # where that fails, the run will find out, and say so
            try:
                self._times(recorded, 1, repeats=1)
            except TraceError:
                return engine(replace(path, recording=False))
        return recorded

    def _times(self, engine: LocalEngine, count: int, repeats: int = 5) -> list[float]:
        """Seconds of some steps of ``count`` clients; the first ones are for warming up."""
        batch, keys = largest_batch(self.data, engine.model, self.seed, count)
        params = engine.model.flat_parameters().repeat(count, 1)
        times, anchor = [], params[0].clone()
        with engine.model.recording(), engine.model.training_only(engine.trained[0]):
            for _ in range(repeats):
                start = time.perf_counter()
                features = engine.global_features(batch, keys, anchor)
                _take_step(engine, params, StepInput(batch, keys, anchor, Extras(features, {})))
                float(params[0, 0])  # wait for the device
                times.append(time.perf_counter() - start)
        return times


def largest_batch(data: FederatedData, model: ClientModel, seed: int, count: int) -> tuple[Any, Tensor]:
    """A batch of ``count`` equal clients (the one with most examples), and their keys."""
    largest = data.client_sizes.argmax().expand(count)
    indices, sizes = data.client_indices(largest)
    device = model.parameters[0].device
    indices = indices[:, : min(data.batch_size, int(sizes[0]))].to(device)
    batch = next(iter(data.batches([(indices, indices)])))
    return model.converted(batch), client_keys(torch.arange(count, device=device), seed, "trial")


def _take_step(engine: LocalEngine, params: Tensor, input: StepInput) -> None:
    """Take a step of G clients in the form in which training will take it, without effect."""
    if engine.padded_width:
        size = next(leaf.shape[1] for leaf in tree_leaves(input.batch) if isinstance(leaf, Tensor))
        input = input._replace(weights=params.new_full((len(params), size), 1 / size))
    function = engine.steps.of_phases[0]
    if isinstance(function, TracedStep) and engine.may_record_descents:
        function.descend(0.0, params, input)
    else:  # the update belongs to the cost of a step, too; with a rate of zero it changes nothing
        params -= 0.0 * function(params, input).gradients
