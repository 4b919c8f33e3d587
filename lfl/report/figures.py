"""Figures for print: PNG and SVG, by matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from lfl.report.curves import Curve
from lfl.report.metrics import AXES
from lfl.report.styles import Style, shortened
from lfl.storage.files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
# Of matplotlib, about figures that are written all the same: letters that its font lacks, no room for the axes.
_HARMLESS = ("Glyph .* missing from", "Matplotlib currently does not support", "constrained_layout not applied")


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


def curves_figure(
    curves: Mapping[str, tuple[Curve, Style]], metric: str, axis: str, groups: int | None = None
) -> Figure | None:
    """Draw a metric of groups, by label, against an axis of ``AXES``; None where no group has the axis.

    Args:
        curves: what is drawn.
        metric: its name.
        axis: the name of the axis.
        groups: how many groups there are, of which the figure says that some are not drawn; None for those drawn.
    """
    figure, axes = _empty()
    labels = _shown(curves)
    for label, (curve, style) in curves.items():
        if axis in curve.axes:
            band = (curve.axes[axis], curve.mean, curve.low, curve.high)
            draw_band(axes, *band, label=labels[label], linewidth=1.5, **_line(style))
    if not axes.lines:
        return None
    axes.set(xlabel=AXES[axis], ylabel=metric)
    _legend(figure, axes, groups)
    return figure


def clients_figure(values: Mapping[str, tuple[ArrayLike, Style]], metric: str, groups: int | None = None) -> Figure:
    """Draw how clients' values of a metric are spread: for each group the share of clients below a value.

    Args and what is drawn of many groups are as for ``curves_figure``.
    """
    figure, axes = _empty()
    labels = _shown(values)
    for label, (of_clients, style) in values.items():
        axes.ecdf(of_clients, label=labels[label], **_line(style))
    axes.set(xlabel=f"{metric} of a client", ylabel="share of clients with at most that")
    _legend(figure, axes, groups)
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``NAME.png`` and ``NAME.svg``; equal figures give equal files."""
    import matplotlib as mpl

    paths = []
    for suffix in FORMATS:
        content = io.BytesIO()
        metadata = {"Date": None} if suffix == "svg" else {}
        with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
            for message in _HARMLESS:
                warnings.filterwarnings("ignore", message)
            figure.savefig(content, format=suffix, dpi=150, metadata=metadata)
        paths.append(write_file(folder / f"{name}.{suffix}", content.getvalue()))
    return paths


def _shown(labels: Iterable[str]) -> dict[str, str]:
    """What legends say, by label; a dollar is one, and begins no formula."""
    return {label: text.replace("$", r"\$") for label, text in shortened(labels).items()}


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


def _legend(figure: Figure, axes: Axes, groups: int | None) -> None:
    """Within the axes for a few groups; beside them for more, which would hide the curves, or for long labels."""
    labels = axes.get_legend_handles_labels()[1]
    count = len(axes.lines)
    if groups is not None and count < groups:
        axes.set_title(f"{count} of {groups} groups", loc="right", fontsize="small")
    if count > 6 or max(map(len, labels), default=0) > 30:
        figure.set_size_inches(8, 4)
        axes.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif count:
        axes.legend(fontsize="small", frameon=False)
