"""The tables of a report: what groups reached, at what cost, what they sent, and where their time went."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import pandas as pd

from lfl.report.groups import Group
from lfl.report.metrics import Target
from lfl.report.numbers import digits_for, last_tenth
from lfl.report.runs import SECONDS, TRAINING, Run, total
from lfl.reporting.formats import direction_of

Value = Callable[[Run], float | None]


@dataclass(frozen=True)
class Quantity:
    """A column: a number of each run.

    Attributes:
        name: in CSV files.
        title: in headings.
        over: a heading over it and its neighbours.
        value: the number of a run; None where the run does not have it.
        direction: 1 where large is good, -1 where small is, 0 where nothing tells.
        lost: what to say of runs whose number is not finite, and not in the mean.
        digits: after the point; None for as many as the numbers need.
    """

    name: str
    title: str
    over: str
    value: Value
    direction: int = 0
    lost: str = "not finite"
    digits: int | None = None

    @property
    def full_title(self) -> str:
        """The title where nothing is over it."""
        return f"{self.title} {self.over}" if self.over.startswith("to ") else self.title


@dataclass(frozen=True)
class Cell:
    """A number of a group: its values over seeds, of those runs that have it.

    Attributes:
        values: of the runs, finite or not.
        lost: what to say of those that are not.
        runs: how many runs there are, with those that have no value; None for as many as values.
        is_finished: whether all runs are: nobody knows how good the rounds are that are lost, or to come.
    """

    values: Sequence[float]
    lost: str = "not finite"
    runs: int | None = None
    is_finished: bool = True

    @property
    def finite(self) -> list[float]:
        """The values that count."""
        return [value for value in self.values if math.isfinite(value)]

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN for no values."""
        return statistics.mean(self.finite) if self.finite else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds, of a sample; NaN for fewer than two."""
        return statistics.stdev(self.finite) if len(self.finite) > 1 else math.nan

    @property
    def remark(self) -> str:
        """The number of runs that are not in the mean, and why; empty where all are, or none has a value."""
        known, lost = len(self.values), len(self.values) - len(self.finite)
        logged = f"{known} of {self.runs} logged it" if self.runs is not None and 0 < known < self.runs else ""
        return ", ".join(filter(None, (logged, f"{lost} of {known} {self.lost}" if lost else "")))

    @property
    def is_complete(self) -> bool:
        """Whether all runs have logged it, in all their rounds: else it compares with no other."""
        return len(self.values) == (len(self.values) if self.runs is None else self.runs) and self.is_finished

    @property
    def is_whole(self) -> bool:
        """Whether, besides, all runs are in the mean."""
        return self.is_complete and len(self.finite) == len(self.values)

    def texts(self, digits: int) -> tuple[str, str, str]:
        """The mean, the deviation with its sign, and the remark, each perhaps empty."""
        mean = "" if math.isnan(self.mean) else told(self.mean, digits)
        deviation = "" if math.isnan(self.deviation) else f"± {told(self.deviation, digits) if self.deviation else 0}"
        return mean, deviation, self.remark

    def text(self, digits: int) -> str:
        """All of it: ``0.4958 ± 0.0120 (1 never)``."""
        mean, deviation, remark = self.texts(digits)
        return " ".join([*filter(None, (mean, deviation)), *([f"({remark})"] if remark else [])])


@dataclass(frozen=True)
class Summary:
    """A table of groups (rows) and quantities (columns)."""

    groups: Sequence[Group]
    quantities: Sequence[Quantity]
    cells: Sequence[Sequence[Cell]]

    @cached_property
    def digits(self) -> list[int]:
        """Digits after the point, one number for each column, so that numbers are aligned."""
        needed = [digits_for(cell.mean for cell in column) for column in zip(*self.cells, strict=True)]
        return [n if q.digits is None else q.digits for q, n in zip(self.quantities, needed, strict=True)]

    def best(self, column: int) -> set[int]:
        """The rows with the best mean of a column, of those that all runs of their group are in, which are finished.

        None where nothing tells what is better, or no two rows can be compared.
        """
        direction = self.quantities[column].direction
        cells = {row: cells[column] for row, cells in enumerate(self.cells) if cells[column].values}
        means = {row: direction * cell.mean for row, cell in cells.items() if cell.is_whole}
        if not direction or sum(cell.is_complete for cell in cells.values()) < 2 or not means:
            return set()
        return {row for row, mean in means.items() if mean == max(means.values())}

    def frame(self, names: Mapping[str, str]) -> pd.DataFrame:
        """The table as numbers: means, deviations, and how many runs they are of.

        Args:
            names: short names of the settings that differ between groups.
        """
        rows = []
        for group, cells in zip(self.groups, self.cells, strict=True):
            row: dict[str, object] = {"group": group.label}
            row |= {name: group.settings.get(key) for key, name in names.items()}
            row |= {"runs": len(group.runs), "counted": len(group.counted)}
            for quantity, cell in zip(self.quantities, cells, strict=True):
                row |= {f"{quantity.name}_mean": cell.mean, f"{quantity.name}_std": cell.deviation}
                row |= {f"{quantity.name}_n": len(cell.finite)}
            rows.append(row)
        return pd.DataFrame(rows)


def told(value: float, digits: int) -> str:
    """A number with so many digits after the point; with an exponent where those would show nothing of it.

    >>> told(0.49583, 4), told(1234.5, 0), told(3e-8, 4), told(0.0, 2)
    ('0.4958', '1,234', '3.00e-08', '0.00')
    """
    if not math.isfinite(value):
        return str(value)
    is_tiny = value != 0 and abs(value) < 0.5 * 10**-digits and digits >= 4
    return f"{value:.2e}" if is_tiny else f"{value:,.{digits}f}"


def quantities_of(metric: str, targets: Sequence[Target]) -> list[Quantity]:
    """The columns of the summary: values of the metric, what targets cost, and what whole runs cost."""
    direction = direction_of(metric)
    found = [Quantity("final", "final", metric, partial(final, metric=metric), direction)]
    if direction:
        found.append(Quantity("best", "best", metric, partial(best, metric=metric, direction=direction), direction))
    found.append(Quantity("last_tenth", "last tenth", metric, partial(late, metric=metric), direction))
    for target in targets:
        for axis, unit in (("round", "rounds"), ("mb", "MB"), ("sim", "simulated s"), ("seconds", "real s")):
            name = f"{axis}_to_{target.metric}_{target.value:g}"
            value = partial(cost, target=target, axis=axis)
            better = 0 if axis == "seconds" else -1  # runs of a sweep share a machine: none is marked as the fastest
            found.append(Quantity(name, unit, f"to {target}", value, better, "never", 1 if axis == "round" else None))
    costs = (("mb_up", "MB up"), ("mb_down", "MB down"), ("sim", "simulated s"), ("seconds", "real s"))
    return [*found, *(Quantity(axis, title, "whole run", partial(whole, axis=axis)) for axis, title in costs)]


def summary_of(groups: Sequence[Group], quantities: Sequence[Quantity]) -> Summary:
    """The summary, without columns of which no run has a value."""
    columns = [[_cell(group, quantity) for group in groups] for quantity in quantities]
    kept = [number for number, column in enumerate(columns) if any(cell.values for cell in column)]
    rows = [[columns[number][row] for number in kept] for row in range(len(groups))]
    return Summary(groups, [quantities[number] for number in kept], rows)


def final(run: Run, metric: str) -> float | None:
    """The last value of a metric."""
    return float(run.metrics[metric].iloc[-1]) if metric in run.metrics else None


def best(run: Run, metric: str, direction: int) -> float | None:
    """The best value of a metric."""
    series = run.metrics.get(metric)
    return None if series is None else float(series.max() if direction > 0 else series.min())


def late(run: Run, metric: str) -> float | None:
    """The mean of the last tenth of the evaluations."""
    return last_tenth(run.metrics[metric].tolist()) if metric in run.metrics else None


def cost(run: Run, target: Target, axis: str) -> float | None:
    """Rounds, megabytes or seconds until a target was reached first; infinity for never."""
    if target.metric not in run.metrics or (axis != "round" and axis not in run.axes):
        return None
    first = target.first(run.metrics[target.metric])
    spent = None if first is None else run.at(axis, [first])
    return math.inf if spent is None else float(spent.iloc[0])


def whole(run: Run, axis: str) -> float | None:
    """Megabytes or seconds of the whole run."""
    return float(run.axes[axis].iloc[-1]) if axis in run.axes else None


def payloads(groups: Sequence[Group]) -> pd.DataFrame:
    """The ledger: megabytes that crossed the wire by group, direction (up, down) and payload, the mean over runs."""
    rows = []
    for group in groups:
        for direction in ("up", "down"):
            prefix = f"comm/{direction}_bytes/"
            names = dict.fromkeys(n for run in group.counted for n in run.metrics if n.startswith(prefix))
            for name in names:
                sent = [
                    total(run.metrics[name]).iloc[-1] / 1e6 if name in run.metrics else 0.0 for run in group.counted
                ]
                payload = name.removeprefix(prefix)
                rows.append(
                    {"group": group.label, "direction": direction, "payload": payload, "mb": statistics.mean(sent)}
                )
    return pd.DataFrame(rows, columns=["group", "direction", "payload", "mb"])


def phases(groups: Sequence[Group]) -> pd.DataFrame:
    """Measured seconds of a round by group: ``training``, and the ``rest`` (evaluation, logging), means over runs."""
    rows = []
    for group in groups:
        runs = [run for run in group.counted if SECONDS in run.metrics and TRAINING in run.metrics and run.is_timed]
        if runs:
            training = statistics.mean(run.metrics[TRAINING].mean() for run in runs)
            whole_round = statistics.mean(run.metrics[SECONDS].mean() for run in runs)
            rows.append({"group": group.label, "training": training, "rest": whole_round - training})
    return pd.DataFrame(rows, columns=["group", "training", "rest"])


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """The lines of a table in Markdown: the first columns are texts, and left-aligned, the others are numbers."""
    ruler = [*["---"] * texts, *["---:"] * (len(columns) - texts)]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in rows)
    return ["| " + " | ".join(cells) + " |" for cells in (columns, ruler, *escaped)]


def _cell(group: Group, quantity: Quantity) -> Cell:
    found = [quantity.value(run) for run in group.counted]
    is_finished = all(run.is_finished for run in group.runs)
    return Cell([value for value in found if value is not None], quantity.lost, len(found), is_finished)
