"""Features of frozen models, which loss terms read: one pass for many batches, if examples are independent.

Frozen models do not change in a round: where clients see their examples several times, and these are the same each
time, each is read once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lfl.client.model import ClientModel
from lfl.client.schedule import BatchPlan, steps_per_epoch_of
from lfl.client.step import at_row
from lfl.engine.feed import BatchFeed, PlannedBatches
from lfl.round import Cohort, CohortPhase

_JOINT_EXAMPLES = 256  # that go through the model in one pass
_KEPT_BYTES = 2**27  # of the features of a cohort's examples

Features = dict[str, Tensor]


class FrozenModel:
    """Reads features of the model at x, and at the clients' own frozen rows, ahead of the steps that need them.

    The model at x is the same for all clients and steps, so that their examples may go through it together, unless it
    draws random numbers, has statistics that training changes, or lets examples see each other. The last is found by
    trying, once. The model in a client's row is the same for all its steps, whose examples go through it together.

    Args:
        model: a probed model.
        batch_size: of the clients.
        feed: reads all examples of a cohort.
        alone: a pass, from a batch ``[G, b, ...]``, keys [G] and x [D], or rows [G, D], to outputs ``[G, b, ...]``.

    Attributes:
        is_joint: whether batches are read together; None as long as that is not known.
    """

    def __init__(
        self,
        model: ClientModel,
        batch_size: int,
        feed: BatchFeed,
        alone: Callable[[Any, Tensor, Tensor], Features],
    ) -> None:
        self._model, self._batch_size, self._feed, self._alone = model, batch_size, feed, alone
        self._example_bytes = 0  # of an example's features; not known yet
        self.is_joint: bool | None = None  # not known yet

    def reading_ahead(
        self, cohort: Cohort, phase: CohortPhase, batches: PlannedBatches
    ) -> Iterator[tuple[BatchPlan, Any, Features | None]]:
        """The batches, each with its features; None where those must be read in the step, or nobody wants any."""
        if not self._model.global_feature_names or self.is_joint is False:
            yield from ((plan, batch, None) for plan, batch in batches)
        elif table := self._read_all(cohort, phase):
            yield from ((plan, batch, table.of(plan)) for plan, batch in batches)
        else:
            yield from self._read_in_parts(cohort, batches)

    def _read_in_parts(
        self, cohort: Cohort, batches: PlannedBatches
    ) -> Iterator[tuple[BatchPlan, Any, Features | None]]:
        at_once = max(1, _JOINT_EXAMPLES // (len(cohort) * self._batch_size))
        while some := list(itertools.islice(batches, at_once)):
            for (plan, batch), features in zip(some, self._read(cohort, some), strict=True):
                yield plan, batch, features

    def _read_all(self, cohort: Cohort, phase: CohortPhase) -> FeatureTable | None:
        """The features of all examples of a cohort; None where no example comes twice, or they would be too many."""
        steps = steps_per_epoch_of(cohort.num_examples, self._batch_size)
        if not self._feed.is_fixed or int(phase.num_steps.sum()) < 2 * int(steps.sum()):
            return None
        table = FeatureTable(self._feed.indices(cohort))
        keys = cohort.ids.to(cohort.values.device)  # of no use: nothing is augmented
        at_once = max(1, _JOINT_EXAMPLES // len(cohort))
        examples = self._feed.of_all_examples(cohort, len(cohort), keys, at_once)
        while self._example_bytes * table.places <= _KEPT_BYTES:
            if not (some := list(itertools.islice(examples, 1))):
                return table
            (features,) = self._read(cohort, some)
            if features is None:
                return None
            table.keep(some[0][0], features)
            self._example_bytes = table.bytes_of_example
        return None

    def _read(self, cohort: Cohort, some: list[tuple[BatchPlan, Any]]) -> list[Features] | list[None]:
        """The features of some batches from one pass; None for each where a pass depends on who else is in it."""
        if self.is_joint is None and (self._model.traits.random_operations or self._model.traits.side_effect):
            self.is_joint = False
        if not _are_alike(some):
            self.is_joint = False
        if self.is_joint is False:
            return [None] * len(some)
        keys = cohort.ids.to(cohort.values.device)  # of no use: nothing is drawn
        shapes = [next(leaf.shape[:2] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)) for _, batch in some]
        # Clients and examples become one dimension: to a model without a memory they are examples alike.
        joined = tree_map(lambda *parts: torch.cat([x.flatten(0, 1) for x in parts]), *(batch for _, batch in some))
        self._model.bind(cohort.anchor)  # a step binds a client's row again
        features = self._model.global_features(joined, keys[0], None)
        counts = [shape.numel() for shape in shapes]
        # A layer may be called once in a pass, on something else than the batch: its output has no rows of examples.
        if any(value.shape[:1] != (sum(counts),) for value in features.values()):
            self.is_joint = False
            return [None] * len(some)
        parts = {name: value.split(counts) for name, value in features.items()}
        of_batches = [
            {name: part[index].unflatten(0, shape) for name, part in parts.items()}
            for index, shape in enumerate(shapes)
        ]
        if self.is_joint is None:
            plan, batch = some[0]
            alone = self._alone(batch, keys[plan.rows], cohort.anchor)
            self.is_joint = all(_are_close(of_batches[0][name], value) for name, value in alone.items())
            if not self.is_joint:
                return [None] * len(some)
        for name, rows in self._model.frozen_rows_in(cohort.loss_rows).items():
            for found, own in zip(of_batches, self._read_rows(rows, keys, some), strict=True):
                found |= {at_row(name, submodule): value for submodule, value in own.items()}
        return of_batches

    def _read_rows(self, rows: Tensor, keys: Tensor, some: list[tuple[BatchPlan, Any]]) -> Iterator[Features]:
        """The features of some batches at the clients' own models, rows [C, D]; one pass for those of equal clients."""
        for _, group in itertools.groupby(some, key=lambda item: _clients_of(item[0])):
            plans, batches = zip(*group, strict=True)
            picked = plans[0].rows
            joined = tree_map(lambda *parts: torch.cat(parts, dim=1), *batches)
            features = self._alone(joined, keys[picked], rows[picked])
            widths = [plan.indices.shape[1] for plan in plans]
            parts = {name: value.split(widths, dim=1) for name, value in features.items()}
            yield from ({name: part[index] for name, part in parts.items()} for index in range(len(plans)))


class FeatureTable:
    """Features of a cohort's examples, looked up by example.

    Args:
        indices: positions of each client's examples in the training data [C, n], padded.

    Attributes:
        places: how many examples there is room for.
    """

    def __init__(self, indices: Tensor) -> None:
        # An example's place is that of its index in the sorted row: the same when it is kept and when it is read.
        self._sorted = indices.sort(dim=1).values
        self._clients = torch.arange(len(indices), device=indices.device)
        self._values: Features = {}
        self.places = indices.numel()

    def keep(self, plan: BatchPlan, features: Features) -> None:
        """Take the features ``[G, b, ...]`` of a batch."""
        places = self._places(plan)
        for name, value in features.items():
            if name not in self._values:
                self._values[name] = value.new_empty(*self._sorted.shape, *value.shape[2:])
            self._values[name][places] = value

    def of(self, plan: BatchPlan) -> Features:
        """The features ``[G, b, ...]`` of a batch."""
        places = self._places(plan)
        return {name: value[places] for name, value in self._values.items()}

    @property
    def bytes_of_example(self) -> int:
        """Bytes of the features of one example."""
        return sum(value[0, 0].numel() * value.element_size() for value in self._values.values())

    def _places(self, plan: BatchPlan) -> tuple[Tensor, Tensor]:
        rows = self._sorted[plan.rows]
        return self._clients[plan.rows, None], torch.searchsorted(rows, plan.indices.contiguous())


def _clients_of(plan: BatchPlan) -> tuple[int, ...]:
    """A key that batches share whose clients are known to be the same without looking at a device."""
    return (plan.rows.start, plan.rows.stop) if isinstance(plan.rows, slice) else (id(plan),)


def _are_alike(some: list[tuple[BatchPlan, Any]]) -> bool:
    """Whether the examples of all batches have equal shapes, and are nothing but tensors."""
    shapes = {tuple(x.shape[2:] if isinstance(x, Tensor) else None for x in tree_leaves(batch)) for _, batch in some}
    return len(shapes) == 1 and not any(None in shape for shape in shapes)


def _are_close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal up to the rounding of the less precise of their types."""
    size = min(a.dtype.itemsize, b.dtype.itemsize)
    tolerance = 1e-2 if size < 4 else 1e-4 if size < 8 else 1e-10
    a, b = a.double(), b.double()
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * b.abs().max())
