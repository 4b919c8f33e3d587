"""The numbers that a study ends with, by method and run; small files of them are kept in the repository.

A study has many runs, of which a table and the claims of ``docs/claims.md`` need some numbers: an accuracy at the end,
seconds to a target. They are rows of a CSV file in ``docs/results/data/``, one for each setting, method, quantity and
seed. Of experiments whose runs were lost only the means are known; such a row has no seed, but a standard deviation and
a number of runs.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from lfl.report.numbers import told_first
from lfl.storage.files import write_file
from tools import REPOSITORY
from tools.table import Table

KEPT = REPOSITORY / "docs" / "results" / "data"


@dataclass(frozen=True)
class Number:
    """A number of one run, or the mean of several.

    Attributes:
        setting: what else differs in a study, such as the number of clients; empty for nothing.
        method: of the run.
        quantity: what it is a number of, with its unit.
        seed: of the run; None for a mean.
        value: the number; nan where there is none, inf where something was never reached.
        deviation: the standard deviation over runs, for a mean; nan if it is not known.
        runs: of a mean.
    """

    setting: str
    method: str
    quantity: str
    seed: int | None
    value: float
    deviation: float = math.nan
    runs: int = 1


@dataclass(frozen=True)
class Quantity:
    """A quantity of all methods.

    Attributes:
        values: its values by method, each by seed; nan where there is none, inf where something was never reached.
        digits: after the point, in a table.
    """

    values: Mapping[str, Sequence[float]]
    digits: int = 1

    def told(self, method: str) -> str:
        """Mean and standard deviation of a method's values, and how many runs never got there; empty for none."""
        known = [value for value in self.values.get(method, ()) if not math.isnan(value)]
        return told_first([None if math.isinf(value) else value for value in known], self.digits)


Quantities = Mapping[str, Quantity]


def numbers_of(quantities: Quantities, setting: str = "", first_seed: int = 0) -> list[Number]:
    """The numbers of quantities, by name, in one setting; their seeds count from ``first_seed``."""
    return [
        Number(setting, method, name, seed, value)
        for name, quantity in quantities.items()
        for method, values in quantity.values.items()
        for seed, value in enumerate(values, first_seed)
    ]


def beside(numbers: Sequence[Number], path: Path) -> list[Number]:
    """The kept numbers with these, which replace those of the same runs, and means of the same methods.

    Numbers of one run stand together with those of the method's other runs, in the order in which methods came.
    """
    methods = {row.method for row in numbers}
    before = read(path) if path.exists() else []
    found = {_run_of(row): row for row in before if row.seed is not None or row.method not in methods}
    found |= {_run_of(row): row for row in numbers}
    places = {row[:3]: place for place, row in enumerate(dict.fromkeys(key[:3] for key in found))}
    return [found[key] for key in sorted(found, key=lambda key: (places[key[:3]], key[3]))]


def _run_of(row: Number) -> tuple[str, str, str, int]:
    return row.quantity, row.setting, row.method, -1 if row.seed is None else row.seed


def quantities_of(numbers: Sequence[Number], digits: Mapping[str, int]) -> Quantities:
    """Quantities by name with their numbers of all runs, and as many digits as ``digits`` says; no others."""
    values: dict[str, dict[str, list[float]]] = {name: {} for name in digits}
    for row in numbers:
        if row.quantity in digits:
            values[row.quantity].setdefault(row.method, []).append(row.value)
    return {name: Quantity(values[name], digits[name]) for name in digits}


def tabulate(title: str, quantities: Quantities, first: str = "method") -> Table:
    """A table with a line for each method and a column for each quantity."""
    table = Table(title, [first, *quantities])
    for method in dict.fromkeys(method for quantity in quantities.values() for method in quantity.values):
        table.add(method, *(quantity.told(method) for quantity in quantities.values()))
    return table


def write(numbers: Iterable[Number], path: Path) -> Path:
    """Write numbers as CSV, six digits of each."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Number)])
    writer.writerows([_cell(value) for value in astuple(number)] for number in numbers)
    return write_file(path, text.getvalue())


def read(path: Path) -> list[Number]:
    """Read what ``write`` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Number(
                row["setting"],
                row["method"],
                row["quantity"],
                int(row["seed"]) if row["seed"] else None,
                float(row["value"]),
                float(row["deviation"] or "nan"),
                int(row["runs"]),
            )
            for row in csv.DictReader(file)
        ]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Numbers:
    """The numbers of a study, to be asked for.

    Args:
        rows: all of them.
    """

    def __init__(self, rows: Sequence[Number]) -> None:
        self.rows = rows

    def of(self, method: str, quantity: str, setting: str) -> list[Number]:
        """A method's numbers of a quantity in a setting, by seed.

        Raises:
            KeyError: there are none; says which there are.
        """
        asked = (setting, method, quantity)
        found = [row for row in self.rows if (row.setting, row.method, row.quantity) == asked]
        if not found:
            near = [f"{row.setting!r}: {row.method!r}: {row.quantity!r}" for row in self.rows]
            raise KeyError(f"no number {asked}; there are {', '.join(dict.fromkeys(near))}")
        return found

    def mean(self, method: str, quantity: str, setting: str = "") -> float:
        """The mean over runs."""
        return statistics.mean(row.value for row in self.of(method, quantity, setting))

    def median(self, method: str, quantity: str, setting: str = "") -> float:
        """The median over runs."""
        return statistics.median(row.value for row in self.of(method, quantity, setting))

    @property
    def settings(self) -> list[str]:
        """All settings."""
        return list(dict.fromkeys(row.setting for row in self.rows))

    def methods(self, quantity: str, setting: str) -> list[str]:
        """The methods that have a quantity in a setting."""
        rows = (row for row in self.rows if (row.quantity, row.setting) == (quantity, setting))
        return list(dict.fromkeys(row.method for row in rows))
