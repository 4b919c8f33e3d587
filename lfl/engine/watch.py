"""Watching steps: one of a cohort is taken both ways, and one that comes out wrong is kept to try other paths on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lfl.client.model import ClientModel
from lfl.client.step import StepInput, StepResult
from lfl.engine.witness import Difference, Witness
from lfl.randomness import derive_seed
from lfl.round import Cohort


class StepFailure(NamedTuple):
    """A step that raised an error: in which phase of the local work, with which parameters [G, D] and input."""

    error: Exception
    phase: int
    params: Tensor
    input: StepInput


class StepSample:
    """A step of some clients that came out wrong: in which phase, with which parameters [G, D] and input."""

    def __init__(self, phase: int, params: Tensor, input: StepInput) -> None:
        self.phase, self._params, self._input = phase, params.clone(), input

    def as_taken(self, together: bool, padded: bool) -> Iterator[tuple[Tensor, StepInput]]:
        """The steps as a path takes them: padded, in groups of equal length, or of one client after another."""
        if padded or (together and self._input.weights is None):
            yield self._params, self._input
            return
        lengths = [self._length(row) for row in range(len(self._params))]
        rows = [row for row, length in enumerate(lengths) if length]  # those at work
        if not together:
            yield from (self._take([row], lengths[row]) for row in rows)
            return
        for length in dict.fromkeys(lengths[row] for row in rows):
            yield self._take([row for row in rows if lengths[row] == length], length)

    def _length(self, row: int) -> int:
        if self._input.weights is None:
            return int(next(x.shape[1] for x in tree_leaves(self._input.batch) if isinstance(x, Tensor)))
        return int((self._input.weights[row] > 0).sum())

    def _take(self, rows: list[int], length: int) -> tuple[Tensor, StepInput]:
        chosen = torch.tensor(rows, device=self._params.device)
        input = self._input
        extras = input.extras._replace(rows={name: values[chosen] for name, values in input.extras.rows.items()})
        batch = tree_map(lambda x: x[chosen, :length], input.batch)
        return self._params[chosen], input._replace(batch=batch, keys=input.keys[chosen], extras=extras, weights=None)


class StepWatch:
    """Compares one step of a cohort, drawn by the round, with the same step of its clients alone.

    Args:
        model: the model.
        trained: names of the parameters that get a gradient in each phase of the local work; None for all.
        seed: of the draw.
        cohort: the cohort.
    """

    def __init__(self, model: ClientModel, trained: list[list[str] | None], seed: int, cohort: Cohort) -> None:
        self._model, self._trained = model, trained
        # As many batches as there are steps, or more.
        self._due = derive_seed(seed, "watch", cohort.round.number) % max(1, int(cohort.num_steps.max()))
        self._passed = 0

    def is_due(self) -> bool:
        """Whether the next step is to be compared; called once a step."""
        self._passed += 1
        return self._passed == self._due + 1

    def check(self, phase: int, params: Tensor, input: StepInput, result: StepResult) -> None:
        """Raise Difference if the step of some clients, with parameters [G, D], comes out otherwise alone."""
        try:
            Witness(self._model, self._trained[phase]).check(params, input, result)
        except Difference as difference:
            difference.sample = StepSample(phase, params, input)
            raise

    def check_descent(
        self, phase: int, before: Tensor, after: Tensor, rate: float, input: StepInput, result: StepResult
    ) -> None:
        """Raise Difference if ``after`` is not ``before - rate * gradients``, or losses and logs are others."""
        try:
            witness = Witness(self._model, self._trained[phase])
            witness.check_descent(before, after, rate, input, result.losses, result.logs)
        except Difference as difference:
            difference.sample = StepSample(phase, before, input)
            raise
