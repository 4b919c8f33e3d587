"""How groups look: the same colour and line everywhere, in pages and in figures for print."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito's colours, which colour-blind people can tell apart, without black and yellow: those are not to be seen
# on a dark or on a light page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f")
# For more groups than colours: lengths of dashes and gaps.
DASHES: tuple[tuple[int, ...], ...] = ((), (6, 3), (2, 2), (8, 2, 2, 2))
DRAWN = 12  # groups that are drawn at first: more cannot be told apart


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
