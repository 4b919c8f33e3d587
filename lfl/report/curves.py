"""Curves of groups: means over seeds with their range, against rounds, bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pandas as pd

from lfl.report.groups import Group
from lfl.report.metrics import AXES
from lfl.report.runs import Run

MOST_POINTS = 400  # of a drawn curve: no screen shows more


@dataclass(frozen=True)
class Curve:
    """A metric of a group by round, at n rounds.

    Attributes:
        rounds: where all its runs were evaluated [n].
        mean: the mean over the runs [n].
        low: the lowest of them [n].
        high: the highest of them [n].
        axes: what the curve may be drawn against, by name, the mean over the runs [n].
        seeds: how many runs there are.
    """

    rounds: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    axes: Mapping[str, np.ndarray]
    seeds: int

    def thinned(self, most: int) -> Curve:
        """The same with every k-th round, and the last one, so that there are at most ``most`` of them and one."""
        step = -(-len(self.rounds) // most)
        if step <= 1:
            return self
        kept = np.unique([*range(0, len(self.rounds), step), len(self.rounds) - 1])
        axes = {name: values[kept] for name, values in self.axes.items()}
        return Curve(self.rounds[kept], self.mean[kept], self.low[kept], self.high[kept], axes, self.seeds)


def curve_of(group: Group, metric: str) -> Curve | None:
    """The curve of a metric over a group's runs, where all of them that have it were evaluated; None for none."""
    runs = [run for run in group.counted if metric in run.metrics]
    series = [run.metrics[metric] for run in runs]
    rounds = reduce(lambda left, right: left.intersection(right), [s.index for s in series]) if series else []
    if not len(rounds):
        return None
    values = np.stack([s.reindex(rounds).to_numpy() for s in series])
    axes = {name: _mean_axis(runs, name, pd.Index(rounds)) for name in AXES}
    return Curve(
        np.asarray(rounds),
        values.mean(0),
        values.min(0),
        values.max(0),
        {name: axis for name, axis in axes.items() if axis is not None},
        len(runs),
    )


def _mean_axis(runs: Sequence[Run], name: str, rounds: pd.Index) -> np.ndarray | None:
    found = [run.at(name, rounds) for run in runs]
    present = [series.to_numpy() for series in found if series is not None]
    return np.mean(present, axis=0) if present and len(present) == len(runs) else None
