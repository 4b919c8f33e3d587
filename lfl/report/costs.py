"""The costs of targets: rounds, bytes and seconds of every run until it reached them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lfl.report.groups import Group
from lfl.report.metrics import AXES, Target
from lfl.report.tables import cost

FEWEST_OF_BOX = 5  # runs: quartiles of fewer say less than the runs themselves


@dataclass(frozen=True)
class Costs:
    """The costs of targets to a group's runs, until they reached them.

    Attributes:
        values: for each target the costs of the runs, of those that have the metric and the axis; inf for never.
    """

    values: Sequence[Sequence[float]]

    @property
    def reached(self) -> list[list[float]]:
        """For each target the costs of the runs that reached it."""
        return [[value for value in values if math.isfinite(value)] for values in self.values]

    @property
    def missed(self) -> list[int]:
        """For each target the number of runs that never reached it."""
        return [sum(map(math.isinf, values)) for values in self.values]


def costs_of(groups: Sequence[Group], targets: Sequence[Target]) -> dict[str, dict[str, Costs]]:
    """The costs of targets by axis of ``AXES`` and label of the group, where some run has reached one."""
    found = {axis: {group.label: _of(group, targets, axis) for group in groups} for axis in AXES}
    return {axis: costs for axis, costs in found.items() if any(any(c.reached) for c in costs.values())}


def spans_decades(costs: Mapping[str, Costs]) -> bool:
    """Return whether costs are so far apart, 20 times and more, that only a logarithmic axis shows the small ones."""
    known = [value for of_group in costs.values() for values in of_group.reached for value in values]
    return bool(known) and min(known) > 0 and max(known) >= 20 * min(known)


def _of(group: Group, targets: Sequence[Target], axis: str) -> Costs:
    spent = [[cost(run, target, axis) for run in group.counted] for target in targets]
    return Costs([[value for value in values if value is not None] for values in spent])
