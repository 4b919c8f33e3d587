"""What steps log, summed over examples when a cohort is done: many steps in one operation, none in the step."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lfl.client.schedule import BatchPlan
from lfl.round import Cohort

_LOGGED_STEPS = 256  # steps whose values are kept before they are summed


class StepLogs:
    """The losses and logged values of the steps of one cohort."""

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[slice | Tensor, Any, Tensor]]] = {}  # by name: rows, sizes, values

    def start(self) -> None:
        """Forget what was kept."""
        self._kept = {}

    def add(self, cohort: Cohort, plan: BatchPlan, losses: Tensor, logs: dict[str, Tensor]) -> None:
        """Keep what a step logs: losses [G] and named values [G]."""
        for name, values in (("train/loss", losses), *logs.items()):
            self._kept.setdefault(name, []).append((plan.rows, plan.sizes, values))
            if len(self._kept[name]) >= _LOGGED_STEPS:
                self._sum(cohort, name)

    def finish(self, cohort: Cohort) -> None:
        """Add the rest to ``cohort.metrics`` and ``cohort.counts``."""
        for name in list(self._kept):
            self._sum(cohort, name)

    def _sum(self, cohort: Cohort, name: str) -> None:
        steps = self._kept.pop(name)
        if name not in cohort.metrics:
            cohort.metrics[name] = cohort.values.new_zeros(len(cohort), dtype=torch.float64)
            cohort.counts[name] = np.zeros(len(cohort))
        if len(cohort) == 1:
            sizes = np.array([size for _, size, _ in steps], dtype=np.float64).reshape(-1)
            values = torch.stack([values for _, _, values in steps]).flatten().double()
            cohort.metrics[name] += values @ torch.from_numpy(sizes).to(values)
            cohort.counts[name] += sizes.sum()
            return
        for rows, size, values in steps:
            weights = torch.from_numpy(size).to(values.device) if isinstance(size, np.ndarray) else size
            cohort.metrics[name][rows] += values.double() * weights
            cohort.counts[name][rows] += size
