"""Features of frozen models, which loss terms read: one pass for many batches, if examples are independent."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lfl.client.model import ClientModel
from lfl.client.schedule import BatchPlan
from lfl.client.step import at_row
from lfl.round import Cohort

_JOINT_EXAMPLES = 256  # that go through the model in one pass

Features = dict[str, Tensor]


class FrozenModel:
    """Reads features of the model at x, and at the clients' own frozen rows, ahead of the steps that need them.

    The model at x is the same for all clients and steps, so that their examples may go through it together, unless it
    draws random numbers, has statistics that training changes, or lets examples see each other. The last is found by
    trying, once. The model in a client's row is the same for all its steps, whose examples go through it together.

    Args:
        model: a probed model.
        batch_size: of the clients.
        alone: a pass, from a batch ``[G, b, ...]``, keys [G] and x [D], or rows [G, D], to outputs ``[G, b, ...]``.

    Attributes:
        is_joint: whether batches are read together; None as long as that is not known.
    """

    def __init__(self, model: ClientModel, batch_size: int, alone: Callable[[Any, Tensor, Tensor], Features]) -> None:
        self._model, self._batch_size, self._alone = model, batch_size, alone
        self.is_joint: bool | None = None  # not known yet

    def reading_ahead(
        self, cohort: Cohort, batches: Iterator[tuple[BatchPlan, Any]]
    ) -> Iterator[tuple[BatchPlan, Any, Features | None]]:
        """The batches, each with its features; None where those must be read in the step, or nobody wants any."""
        if not self._model.global_feature_names or self.is_joint is False:
            yield from ((plan, batch, None) for plan, batch in batches)
            return
        at_once = max(1, _JOINT_EXAMPLES // (len(cohort) * self._batch_size))
        while some := list(itertools.islice(batches, at_once)):
            for (plan, batch), features in zip(some, self._read(cohort, some), strict=True):
                yield plan, batch, features

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


def _clients_of(plan: BatchPlan) -> tuple[int, ...]:
    """What batches have in common whose clients are known to be the same without looking at a device."""
    return (plan.rows.start, plan.rows.stop) if isinstance(plan.rows, slice) else (id(plan),)


def _are_alike(some: list[tuple[BatchPlan, Any]]) -> bool:
    """Whether the examples of all batches have equal shapes, and are nothing but tensors."""
    shapes = {tuple(x.shape[2:] if isinstance(x, Tensor) else None for x in tree_leaves(batch)) for _, batch in some}
    return len(shapes) == 1 and not any(None in shape for shape in shapes)


def _are_close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal up to the rounding of the less precise of their types."""
    tolerance = 1e-2 if min(a.dtype.itemsize, b.dtype.itemsize) < 4 else 1e-4
    a, b = a.double(), b.double()
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * b.abs().max())
