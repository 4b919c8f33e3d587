"""Claims of papers: whether they hold here, with the numbers that decide it."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from tools.table import Table

_ANSWERS = {True: "holds", False: "does not hold", None: "not tested"}


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper.

    Attributes:
        text: what it says.
        holds: whether it does here; None where nothing decides it.
        numbers: why.
    """

    text: str
    holds: bool | None
    numbers: str


def tabulate_claims(title: str, claims: list[Claim]) -> Table:
    """A table with a line for each claim."""
    table = Table(f"{title}: what the paper says", ["claim", "here", "numbers"])
    for claim in claims:
        table.add(claim.text, _ANSWERS[claim.holds], claim.numbers)
    return table


def publish(folder: Path, name: str, title: str, table: Table, claims: list[Claim], warning: str = "") -> None:
    """Show the table and the claims, and write both as files.

    Args:
        folder: of the files.
        name: of the files.
        title: of the claims.
        table: the numbers.
        claims: what they decide.
        warning: a note under both; empty for none.
    """
    for part, suffix in ((table, ""), (tabulate_claims(title, claims), "-claims")):
        if warning:
            part.notes.append(warning)
        part.write(folder, name + suffix)
        part.show()


def ordered(text: str, values: dict[str, float]) -> Claim:
    """Claim that values increase in their order; one that is not finite is larger than all that are."""
    ranks = [value if math.isfinite(value) else math.inf for value in values.values()]
    return compared(text, all(a < b for a, b in itertools.pairwise(ranks)), values, "diverged")


def compared(text: str, holds: bool, values: dict[str, float], otherwise: str = "not reached") -> Claim:
    """A claim with the numbers that decide it, ``otherwise`` for those that are not finite.

    One that does not hold where no number is finite has not been tested.
    """
    is_tested = holds or any(math.isfinite(value) for value in values.values())
    told = ", ".join(f"{name} {number(value, otherwise)}" for name, value in values.items())
    return Claim(text, holds if is_tested else None, told)


def difference(text: str, higher: list[float], lower: list[float]) -> Claim:
    """Claim that numbers are higher than others, with every seed; told are the differences by seed."""
    differences = [a - b for a, b in zip(higher, lower, strict=True)]
    told = f"{statistics.mean(differences):+.1f} ({' '.join(f'{value:+.1f}' for value in differences)})"
    is_read = not any(math.isnan(value) for value in differences)
    return Claim(text, all(value > 0 for value in differences) if is_read else None, told)


def number(value: float, otherwise: str = "diverged") -> str:
    """Write a number with three digits."""
    if not math.isfinite(value):
        return otherwise
    return f"{value:.2e}" if value and not 1e-2 <= abs(value) < 1e4 else f"{value:#.3g}".rstrip(".")
