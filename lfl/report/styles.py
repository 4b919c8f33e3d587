"""The looks of groups: the same colour and line everywhere, in pages and in figures for print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

# Okabe and Ito's colours, which colour-blind people can tell apart, without black and yellow: those are not to be seen
# on a dark or on a light page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f")
# For more groups than colours: lengths of dashes and gaps.
DASHES: tuple[tuple[int, ...], ...] = ((), (6, 3), (2, 2), (8, 2, 2, 2))
DRAWN = 12  # groups that are drawn at first: more cannot be told apart
LONGEST = 40  # characters of a label in a figure for print: longer ones leave no room for the curves


@dataclass(frozen=True)
class Style:
    """Colour and dashes of a group's line, lengths in pixels; none for a solid one."""

    colour: str
    dashes: tuple[int, ...]

    @property
    def dash_array(self) -> str:
        """The dashes as SVG has them, and plotly: ``6px,3px``; ``solid`` for none."""
        return ",".join(f"{length}px" for length in self.dashes) or "solid"


def style_of(number: int) -> Style:
    """The style of the group of this number, counted from 0; after all combinations it begins anew."""
    return Style(COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)])


def shortened(labels: Iterable[str]) -> dict[str, str]:
    """Labels for figures, by the whole ones: long ones lose their middle, and those that are then equal get numbers.

    >>> shortened(["FedAvg", "a" * 30 + "b" * 30])["a" * 30 + "b" * 30]
    'aaaaaaaaaaaaaaaaaaaaaaaa…bbbbbbbbbbbbbbb'
    """
    tail = LONGEST * 3 // 8
    whole = list(labels)
    short = [t if len(t) <= LONGEST else f"{t[: LONGEST - 1 - tail].rstrip()}…{t[-tail:].lstrip()}" for t in whole]
    often, seen = Counter(short), Counter[str]()
    found = {}
    for label, text in zip(whole, short, strict=True):
        seen[text] += 1
        found[label] = f"{text} ({seen[text]})" if often[text] > 1 else text
    return found
