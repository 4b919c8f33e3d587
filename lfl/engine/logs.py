"""Losses and logged values of the steps of a cohort, summed over examples.

A step only keeps its tensors. Many steps are summed together, in few operations and without waiting for the device.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lfl.client.recorder import LoggedSum
from lfl.client.schedule import BatchPlan
from lfl.round import Cohort

# Steps whose values are kept before they are summed. Few: small things that stay keep the memory of the large ones
# around them, batches and gradients, from being joined and used again.
_KEPT_STEPS = 32


class StepLogs:
    """Collects the losses and logged values of one cohort.

    Losses and logged values never share a dict, since a module may log any name, ``train/loss`` included.

    Args:
        cohort: gets the sums, as ``cohort.losses`` and ``cohort.metrics``.
    """

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort
        self._losses = _StepValues(cohort)
        self._logged: dict[str, _StepValues] = {}  # by name

    def add(self, plan: BatchPlan, losses: Tensor, logs: dict[str, Tensor]) -> None:
        """Keep the losses [G] and logged values [G] of one batch."""
        self._losses.add(plan, losses)
        for name, values in logs.items():
            if name not in self._logged:
                self._logged[name] = _StepValues(self._cohort)
            self._logged[name].add(plan, values)

    def finish(self) -> None:
        """Hand the sums to the cohort."""
        self._cohort.losses = None if self._losses.is_empty else self._losses.finish()
        self._cohort.metrics = {name: values.finish() for name, values in self._logged.items()}


class _StepValues:
    """The values of one name, summed when there are many."""

    def __init__(self, cohort: Cohort) -> None:
        self._kept: list[tuple[slice | Tensor, Any, Tensor]] = []  # of each step: rows, numbers of examples, values
        count = len(cohort)
        self._sum = LoggedSum(cohort.values.new_zeros(count, dtype=torch.float64), np.zeros(count))
        self.is_empty = True

    def add(self, plan: BatchPlan, values: Tensor) -> None:
        self.is_empty = False
        self._kept.append((plan.rows, plan.sizes, values))
        if len(self._kept) >= _KEPT_STEPS:
            self._sum_kept()

    def finish(self) -> LoggedSum:
        self._sum_kept()
        return self._sum

    def _sum_kept(self) -> None:
        kept, self._kept = self._kept, []
        if not kept:
            return
        if len(self._sum) == 1:
            # One client: all steps in one product, instead of some operations a step.
            sizes = np.array([size for _, size, _ in kept], dtype=np.float64).reshape(-1)
            values = torch.stack([values for _, _, values in kept]).flatten().double()
            self._sum.total += values @ torch.from_numpy(sizes).to(values)
            self._sum.count += sizes.sum()
            return
        for rows, size, values in kept:
            weights = torch.from_numpy(size).to(values.device) if isinstance(size, np.ndarray) else size
            self._sum.total[rows] += values.double() * weights
            self._sum.count[rows] += size
