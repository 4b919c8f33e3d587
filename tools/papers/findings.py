"""The findings of a study of a paper's small experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.papers.kept import Number
from tools.table import Table


@dataclass(frozen=True)
class Findings:
    """The results of a table or a figure of a paper.

    Attributes:
        table: for people.
        numbers: that decide claims.
        draw: draws its figures, given the path of a PNG; those with several begin with its name. None for no figure.
    """

    table: Table
    numbers: list[Number]
    draw: Callable[[Path], object] | None = None
