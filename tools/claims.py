"""What a paper says, and whether it holds here, with the numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from report import Table

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
    """A line for each."""
    table = Table(f"{title}: what the paper says", ["claim", "here", "numbers"])
    for claim in claims:
        table.add(claim.text, _ANSWERS[claim.holds], claim.numbers)
    return table


def ordered(text: str, values: dict[str, float]) -> Claim:
    """The values increase in their order; one that is not finite is larger than all that are."""
    ranks = [value if math.isfinite(value) else math.inf for value in values.values()]
    return compared(text, all(a < b for a, b in itertools.pairwise(ranks)), values, "diverged")


def compared(text: str, holds: bool, values: dict[str, float], otherwise: str = "not reached") -> Claim:
    """A claim with the numbers that decide it, ``otherwise`` for those that are not finite.

    One that does not hold where no number is finite has not been tested.
    """
    is_tested = holds or any(math.isfinite(value) for value in values.values())
    told = ", ".join(f"{name} {number(value, otherwise)}" for name, value in values.items())
    return Claim(text, holds if is_tested else None, told)


def number(value: float, otherwise: str = "diverged") -> str:
    """Three digits."""
    if not math.isfinite(value):
        return otherwise
    return f"{value:.2e}" if value and not 1e-2 <= abs(value) < 1e4 else f"{value:#.3g}".rstrip(".")
