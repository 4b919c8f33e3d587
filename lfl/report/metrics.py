"""The metric that a report is about, which values of it are good, and targets."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from lfl.report.runs import ReportError, Run
from lfl.reporting.formats import LOSS, direction_of

_TARGET = re.compile(r"(?P<metric>.+?)\s*(?P<sign>>=|<=|=)\s*(?P<value>[^<>=]+)")
_OTHERS = ("comm/", "time/", "sim/")
# The rounds, bytes and seconds that curves are drawn against, in the order in which they are offered.
AXES = {
    "round": "round",
    "mb": "MB up and down",
    "mb_up": "MB up",
    "mb_down": "MB down",
    "sim": "simulated seconds",
    "seconds": "real seconds",
}


@dataclass(frozen=True)
class Target:
    """A value of a metric that runs are to reach.

    Attributes:
        metric: its name.
        value: the value.
        direction: 1 where it is reached from below, -1 from above.
    """

    metric: str
    value: float
    direction: int

    def __str__(self) -> str:
        return f"{self.metric} {'≥' if self.direction > 0 else '≤'} {self.value:g}"

    def first(self, series: pd.Series) -> int | None:
        """The first round of a series at which it is reached; None for never."""
        reached = series.index[series >= self.value if self.direction > 0 else series <= self.value]
        return int(reached[0]) if len(reached) else None


def parse_target(text: str, known: Sequence[str]) -> Target:
    """Read ``val_acc=0.9``, ``METRIC>=VALUE`` or ``METRIC<=VALUE``.

    Args:
        text: what was written.
        known: the metrics that there are.

    Raises:
        ReportError: it is none of them, no such metric is known, or its name does not tell what is better.

    >>> parse_target("val_acc=0.9", ["val_acc"]), str(parse_target("train/loss=0.1", ["train/loss"]))
    (Target(metric='val_acc', value=0.9, direction=1), 'train/loss ≤ 0.1')
    """
    found = _TARGET.fullmatch(text.strip())
    try:
        value = float(found["value"]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or math.isnan(value):
        raise ReportError(f"`--target {text}` is no target: write METRIC=VALUE, such as val_acc=0.9.")
    metric, sign = found["metric"], found["sign"]
    check_metric(metric, known, "--target")
    direction = {">=": 1, "<=": -1}.get(sign) or direction_of(metric)
    if not direction:
        raise ReportError(
            f"`--target {text}`: the name of {metric} does not tell whether it should be large or small; write "
            f"'{metric}>={value:g}' or '{metric}<={value:g}'."
        )
    return Target(metric, value, direction)


def names_of_metrics(runs: Sequence[Run]) -> list[str]:
    """The metrics of some runs, those of the first one first."""
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def choose_metrics(runs: Sequence[Run], asked: Sequence[str] = ()) -> list[str]:
    """The metrics of a report, of which the first is in its table: what is asked for, or what is found.

    Found are the validation metric that should be large, then the validation loss, then the training loss; where there
    is none of them, the first metric that the module or a callback logs.

    Raises:
        ReportError: a metric that is asked for is in no run; or there is none at all.
    """
    known = names_of_metrics(runs)
    for name in asked:
        check_metric(name, known, "--metric")
    if asked:
        return list(dict.fromkeys(asked))
    own = [name for name in known if not name.startswith(_OTHERS)]
    of_validation = [name for name in own if name.startswith("val")]
    large = [name for name in of_validation if direction_of(name) > 0]
    small = [name for name in of_validation if direction_of(name) < 0]
    losses = [name for name in own if name == LOSS]
    found = [*large[:1], *small[:1], *(losses or [])]
    found = found or [name for name in own if direction_of(name)][:1] or own[:1]
    if not found:
        raise ReportError("these runs logged bytes and times only: there is no metric to report.")
    return found


def check_metric(name: str, known: Sequence[str], option: str) -> None:
    """Raise ReportError for a metric that no run has, with near names."""
    if name not in known:
        near = difflib.get_close_matches(name, known, 3)
        own = [metric for metric in known if not metric.startswith(_OTHERS)]
        listed = ", ".join(own[:12]) + (", ..." if len(own) > 12 else "")
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {listed}."
        raise ReportError(f"`{option} {name}`: no run has this metric; {hint}")
