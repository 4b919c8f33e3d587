"""Numbers of runs, summed up and written with few digits; more of it is in ``lfl.report.numbers``."""

from __future__ import annotations

import math
from collections.abc import Iterable


def root_mean_square(values: Iterable[float]) -> float:
    """The root of the mean of the squares; nan for none."""
    found = list(values)
    return math.sqrt(sum(value**2 for value in found) / len(found)) if found else math.nan


def three_digits(value: float) -> str:
    """Three digits; a whole number as it is, and - for what is not finite."""
    if isinstance(value, int):
        return str(value)
    return f"{value:#.3g}".rstrip(".") if math.isfinite(value) else "-"
