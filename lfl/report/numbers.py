"""Numbers of runs, summed up and written with few digits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def last_tenth(values: Sequence[float], least: int = 1) -> float:
    """The mean of the last tenth of the values, of at least ``least`` of them; nan for none."""
    return statistics.mean(values[-max(least, len(values) // 10) :]) if values else math.nan


def mean_and_deviation(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation; empty for no values."""
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def told_first(hits: Sequence[float | None], digits: int = 0) -> str:
    """Mean and deviation of when runs first were somewhere, and how many, with None, never were."""
    reached = [float(hit) for hit in hits if hit is not None]
    never = f" ({len(hits) - len(reached)} never)" if len(reached) < len(hits) else ""
    return (mean_and_deviation(reached, digits) + never).lstrip()


def digits_for(values: Iterable[float]) -> int:
    """Digits after the point with which the largest of some numbers has four in all; at most six.

    >>> digits_for([0.4958, 0.02]), digits_for([41.3]), digits_for([12345.6]), digits_for([])
    (4, 2, 0, 0)
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return min(6, max(0, 3 - math.floor(math.log10(largest)))) if largest else 0
