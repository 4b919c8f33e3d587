"""Figures for print: PNG and SVG, by matplotlib."""

from __future__ import annotations

import io
import math
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from lfl.report.costs import FEWEST_OF_BOX, Costs, spans_decades
from lfl.report.curves import Curve
from lfl.report.metrics import AXES, Target
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
    curves: Mapping[str, tuple[Curve, Style]],
    metric: str,
    axis: str,
    groups: int | None = None,
    log: str = "",
) -> Figure | None:
    """Draw a metric of groups, by label, against an axis of ``AXES``; None where no group has the axis.

    Args:
        curves: what is drawn.
        metric: its name.
        axis: the name of the axis.
        groups: how many groups there are, of which the figure says that some are not drawn; None for those drawn.
        log: which axes are logarithmic, of ``x`` and ``y``.
    """
    figure, axes = _empty()
    labels = _shown(curves)
    for label, (curve, style) in curves.items():
        if axis in curve.axes:
            band = (curve.axes[axis], curve.mean, curve.low, curve.high)
            draw_band(axes, *band, label=labels[label], linewidth=1.5, **_line(style))
    if not axes.lines:
        return None
    scales = {f"{name}scale": "log" for name in log}
    axes.set(xlabel=AXES[axis], ylabel=metric, **scales)
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


def costs_figure(
    costs: Mapping[str, tuple[Costs, Style]], targets: Sequence[Target], axis: str, groups: int | None = None
) -> Figure:
    """Draw what targets cost: for each target a box for each group, of the runs that reached it.

    Fewer than five runs are points. Lines join the means of a group over the targets that all its runs reached. Args,
    and what is drawn of many groups, are as for ``curves_figure``.
    """
    figure, axes = _empty()
    labels = _shown(costs)
    step = 0.8 / max(1, len(costs))
    for number, (label, (of_group, style)) in enumerate(costs.items()):
        places = [place + (number - (len(costs) - 1) / 2) * step for place in range(len(targets))]
        reached = of_group.reached
        means = [
            statistics.mean(values) if values and not missed else math.nan
            for values, missed in zip(reached, of_group.missed, strict=True)
        ]
        axes.plot(places, means, label=labels[label], linewidth=0.9, **_line(style))
        for place, values in zip(places, reached, strict=True):
            _draw_runs(axes, place, 0.7 * step, values, style.colour)
    runs = [sum(len(of_group.values[number]) for of_group, _ in costs.values()) for number in range(len(targets))]
    missed = [sum(of_group.missed[number] for of_group, _ in costs.values()) for number in range(len(targets))]
    metrics = {target.metric for target in targets}
    told = [str(target) for target in targets]
    if len(metrics) == 1:  # once, below: side by side, long names would cover each other
        axes.set_xlabel(targets[0].metric)
        told = [text.removeprefix(target.metric).strip() for text, target in zip(told, targets, strict=True)]
    ticks = [f"{text}\n({m} of {n} runs never)" if m else text for text, m, n in zip(told, missed, runs, strict=True)]
    axes.set_xticks(range(len(targets)), ticks)
    is_log = spans_decades({label: of_group for label, (of_group, _) in costs.items()})
    axes.set(ylabel=f"{AXES[axis]} until then", yscale="log" if is_log else "linear")
    _legend(figure, axes, groups)
    return figure


def _draw_runs(axes: Axes, place: float, width: float, values: Sequence[float], colour: str) -> None:
    """Draw the values of runs at a place: a box, or the few there are as points, side by side since some are equal."""
    if len(values) < FEWEST_OF_BOX:
        middle = (len(values) - 1) / 2
        places = [place + width * (number - middle) / FEWEST_OF_BOX for number in range(len(values))]
        axes.plot(places, values, "o", color=colour, markersize=3)
        return
    looks: dict[str, Any] = {f"{part}props": {"color": colour} for part in ("box", "whisker", "cap", "median")}
    looks["flierprops"] = {"markeredgecolor": colour, "markersize": 3}
    axes.boxplot(values, positions=[place], widths=width, manage_ticks=False, **looks)


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
    """The texts of legends by label; a dollar is one, and begins no formula."""
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
    count = len(labels)
    if groups is not None and count < groups:
        axes.set_title(f"{count} of {groups} groups", loc="right", fontsize="small")
    if count > 6 or max(map(len, labels), default=0) > 30:
        figure.set_size_inches(8, 4)
        axes.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif count:
        axes.legend(fontsize="small", frameon=False)
