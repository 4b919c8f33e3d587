"""The batches of a cohort, in the order in which its clients see them."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from lfl.callback import FederatedCallback, overrides
from lfl.client.model import ClientModel
from lfl.client.schedule import BatchPlan, LocalSchedule, Padding, ReplacementSchedule, steps_per_epoch_of
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.hooks import change_batch
from lfl.randomness import client_keys, fold
from lfl.round import Cohort, CohortPhase

_WHOLE_BATCH = 128  # examples at a time in a pass over a client's whole data

PlannedBatches = Iterator[tuple[BatchPlan, Any]]
"""Plans of batches, each with the batch itself: a nest of tensors ``[G, b, ...]``."""


class BatchFeed:
    """Reads batches for cohorts.

    Args:
        model: converts batches to the precision's input type.
        data: the clients' data.
        work: local work of a round.
        seed: of all draws.
        callbacks: the stack: who needs several batches a step, and who changes them.
    """

    def __init__(
        self,
        model: ClientModel,
        data: FederatedData,
        work: LocalWork,
        seed: int,
        callbacks: Sequence[FederatedCallback] = (),
    ) -> None:
        self._model = model
        self._data = data
        self._work = work
        self._seed = seed
        self.batches_per_step = max((callback.batches_per_step for callback in callbacks), default=1)
        self._changing = [callback for callback in callbacks if overrides(callback, "change_batch")]

    @property
    def is_fixed(self) -> bool:
        """Whether an example is the same whenever it is read."""
        return not (self._changing or self._data.has_random_transforms)

    def indices(self, cohort: Cohort) -> Tensor:
        """Positions of each client's examples in the training data [C, n], padded."""
        return self._data.client_indices(cohort.ids)[0].to(cohort.values.device)

    def keys(self, purpose: str, cohort: Cohort, phase: CohortPhase) -> Tensor:
        """One key per client [C] for the draws of a phase."""
        # The first phase has the address that rounds without phases have: adding a phase changes none of its draws.
        later = [phase.index] if phase.index else []
        return client_keys(cohort.ids.to(cohort.values.device), self._seed, purpose, cohort.round.number, *later)

    def of_phase(self, cohort: Cohort, phase: CohortPhase, padding: Padding | None) -> PlannedBatches:
        """The batches of a phase of the local work; a step's independent batches come one after another."""
        schedules = [self._schedule(cohort, phase, padding, draw) for draw in range(self.batches_per_step)]
        if len(schedules) == 1:
            return self._read(schedules[0], cohort)
        # They differ in nothing but their draws, so that their plans have the same rows and sizes.
        steps = zip(*schedules, strict=True)
        plans = (replace(plan, draw=draw) for plans in steps for draw, plan in enumerate(plans))
        return self._read(plans, cohort)

    def _schedule(self, cohort: Cohort, phase: CohortPhase, padding: Padding | None, draw: int) -> Iterable[BatchPlan]:
        """The plans of a phase, in one of several independent orders; the first is the only one of most runs."""
        sizes, batch_size = cohort.num_examples, self._data.batch_size
        indices = self.indices(cohort)
        keys = self.keys("shuffle", cohort, phase)
        augment = self.keys("augment", cohort, phase) if self._data.has_random_transforms else None
        if draw:
            keys, augment = fold(keys, draw), None if augment is None else fold(augment, draw)
        if self._work.sampling == "replacement":
            return ReplacementSchedule(indices, sizes, phase.num_steps, batch_size, keys, augment)
        return LocalSchedule(indices, sizes, phase.num_steps, batch_size, keys, augment, padding=padding)

    def of_all_examples(
        self, cohort: Cohort, count: int, keys: Tensor, batch_size: int | None = None
    ) -> PlannedBatches:
        """One pass over the whole training sets of the first ``count`` clients, in stored order.

        Args:
            cohort: the cohort.
            count: A.
            keys: one key per client, for augmentation [A].
            batch_size: examples of each client in a batch; None for the data's, and 128 at least.
        """
        sizes = cohort.num_examples[:count]
        batch_size = batch_size or max(self._data.batch_size, _WHOLE_BATCH)
        indices = self._data.client_indices(cohort.ids[:count])[0].to(keys.device)
        steps = steps_per_epoch_of(sizes, batch_size)
        augment = keys if self._data.has_random_transforms else None
        return self._read(LocalSchedule(indices, sizes, steps, batch_size, keys, augment, shuffle=False), cohort)

    def _read(self, schedule: Iterable[BatchPlan], cohort: Cohort) -> PlannedBatches:
        # The data module may read ahead of the steps, so it is given an iterator of its own.
        plans, ahead = itertools.tee(schedule)
        batches = self._data.batches((plan.indices, plan.keys) for plan in ahead)
        found = zip(plans, (self._model.converted(batch) for batch in batches), strict=True)
        return ((plan, self._changed(batch, plan, cohort)) for plan, batch in found) if self._changing else found

    def _changed(self, batch: Any, plan: BatchPlan, cohort: Cohort) -> Any:
        for callback in self._changing:
            batch = change_batch(callback, cohort, plan.rows, batch)
        return batch
