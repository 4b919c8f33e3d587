"""Numbers of runs, summed up and written with few digits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def last_tenth(values: Sequence[float], least: int = 1) -> float:
    """The mean of the last tenth of the values, of at least ``least`` of them; nan for none."""
    return statistics.mean(values[-max(least, len(values) // 10) :]) if values else math.nan


def root_mean_square(values: Iterable[float]) -> float:
    """The root of the mean of the squares; nan for none."""
    found = list(values)
    return math.sqrt(sum(value**2 for value in found) / len(found)) if found else math.nan


def mean_and_deviation(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation; empty for no values."""
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def three_digits(value: float) -> str:
    """Three digits; a whole number as it is, and - for what is not finite."""
    if isinstance(value, int):
        return str(value)
    return f"{value:#.3g}".rstrip(".") if math.isfinite(value) else "-"
