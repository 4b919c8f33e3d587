"""Figures for print: PNG and SVG, by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from lfl.report.curves import Curve
from lfl.report.files import write_file
from lfl.report.metrics import AXES
from lfl.report.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


def draw_band(axes: Axes, x: ArrayLike, mean: ArrayLike, low: ArrayLike, high: ArrayLike, **line: Any) -> None:
    """Draw a line of means [n] within the range [n] to [n] of what they are means of.

    Args:
        axes: where to.
        x: at which places [n].
        mean: the line.
        low: the lower end of the band; where it is the line, and the upper end too, there is no band.
        high: the upper end.
        line: as for ``Axes.plot``: label, color, ...
    """
    (drawn,) = axes.plot(x, mean, **line)
    if not np.array_equal(low, high):
        axes.fill_between(x, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)


def curves_figure(curves: Mapping[str, tuple[Curve, Style]], metric: str, axis: str) -> Figure | None:
    """Draw a metric of groups, by label, against an axis of ``AXES``; None where no group has the axis."""
    figure, axes = _empty()
    for label, (curve, style) in curves.items():
        if axis in curve.axes:
            band = (curve.axes[axis], curve.mean, curve.low, curve.high)
            draw_band(axes, *band, label=label, linewidth=1.5, **_line(style))
    if not axes.lines:
        return None
    axes.set(xlabel=AXES[axis], ylabel=metric)
    _legend(figure, axes)
    return figure


def clients_figure(values: Mapping[str, tuple[ArrayLike, Style]], metric: str) -> Figure:
    """Draw how clients' values of a metric are spread: for each group the share of clients below a value."""
    figure, axes = _empty()
    for label, (of_clients, style) in values.items():
        axes.ecdf(of_clients, label=label, **_line(style))
    axes.set(xlabel=f"{metric} of a client", ylabel="share of clients with at most that")
    _legend(figure, axes)
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``NAME.png`` and ``NAME.svg``; equal figures give equal files."""
    import matplotlib as mpl

    paths = []
    for suffix in FORMATS:
        content = io.BytesIO()
        metadata = {"Date": None} if suffix == "svg" else {}
        with mpl.rc_context({"svg.hashsalt": name}):
            figure.savefig(content, format=suffix, dpi=150, metadata=metadata)
        paths.append(write_file(folder / f"{name}.{suffix}", content.getvalue()))
    return paths


def _line(style: Style) -> dict[str, Any]:
    return {"color": style.colour, "linestyle": (0, style.dashes) if style.dashes else "solid"}


def _empty() -> tuple[Figure, Axes]:
    # Not pyplot, which would keep the figure in memory and may ask for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Figure, axes: Axes) -> None:
    """Within the axes for a few groups; beside them for more, which would hide the curves."""
    count = len(axes.get_legend_handles_labels()[1])
    if count > 6:
        figure.set_size_inches(8, 4)
        axes.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif count:
        axes.legend(fontsize="small", frameon=False)
