"""The report as one page of HTML, which needs no network."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from lfl.report.content import Report
from lfl.report.costs import FEWEST_OF_BOX, spans_decades
from lfl.report.curves import MOST_POINTS, Curve
from lfl.report.metrics import AXES
from lfl.report.numbers import digits_for
from lfl.report.partitions import Partitions
from lfl.report.settings import shown
from lfl.report.styles import Style
from lfl.report.tables import told
from lfl.version import __version__

_ALL_POINTS = 16_000  # of all curves, so that the page stays below 5 MB
_BINS = 20
INSTALL = "Curves are interactive with plotly (pip install 'lfl[report]'). Without it they are pictures."


def plotly_script() -> str | None:
    """plotly.js, compressed and in base64, as its package ships it; None where it is not installed.

    The library is 4.8 MB of text, and 2 MB like this; browsers of 2023 and later inflate it themselves.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=6, mtime=0)).decode()


def render(
    report: Report, partitions: Partitions, different: int, script: str | None, pictures: Mapping[str, Path]
) -> str:
    """Make the page.

    Args:
        report: what it says.
        partitions: classes of clients by run, or why they are not known.
        different: how many partitions there are, of which these are some.
        script: of ``plotly_script``; None for a page with pictures.
        pictures: SVG files by the titles of figures, which are shown where there is no script.
    """
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("lfl.report", "page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    curves, thinned = _thinned(report)
    return environment.get_template("report.html").render(
        report=report,
        partitions=partitions,
        different=different,
        version=__version__,
        axes=AXES,
        script=script,
        install=INSTALL,
        pictures={title: base64.b64encode(path.read_bytes()).decode() for title, path in pictures.items()},
        data=_data(report, partitions, curves),
        quantities=report.summary.quantities,
        over=[(over, len(list(some))) for over, some in groupby(q.over for q in report.summary.quantities)],
        rows=_rows(report),
        settings=_settings(report),
        ledger=_ledger(report),
        seconds=_seconds(report),
        thinned=thinned,
        shown=shown,
        uncounted={path.name: found for path, found in partitions.items() if isinstance(found, str)},
    )


def _thinned(report: Report) -> tuple[dict[str, dict[str, Curve]], str]:
    """Curves by metric and label with as many points as a screen shows, and a sentence on those that had more."""
    count = sum(map(len, report.curves.values()))
    most = max(20, min(MOST_POINTS, _ALL_POINTS // max(1, count)))
    longest = max((len(c.rounds) for of in report.curves.values() for c in of.values()), default=0)
    curves = {m: {label: c.thinned(most) for label, c in of.items()} for m, of in report.curves.items()}
    step = -(-longest // most)
    said = f"Curves of more than {most} evaluations show every k-th of them and the last (k is at most {step})."
    return curves, said if step > 1 else ""


def _data(report: Report, partitions: Partitions, curves: Mapping[str, Mapping[str, Curve]]) -> dict[str, Any]:
    """The data that the page's script draws."""
    drawn = set(report.drawn)
    metric, clients = report.clients
    owners = {
        run.path: f"{group.label}, {report.comparison.labels.get(run.path, run.path.name)}"
        for group in report.comparison.groups
        for run in group.runs
    }
    return {
        "groups": [
            {"label": label, "colour": style.colour, "dash": style.dash_array, "drawn": label in drawn}
            for label, style in _in_order(report)
        ],
        "metrics": list(report.metrics),
        "axis": report.axis,
        "targets": [str(target) for target in report.targets],
        "costs": {
            axis: {label: list(map(_short, costs.reached)) for label, costs in of.items()}
            for axis, of in report.costs.items()
        },
        "fewest": FEWEST_OF_BOX,
        "decades": [axis for axis, of in report.costs.items() if spans_decades(of)],
        "titles": AXES,
        "curves": {m: {label: _curve(curve) for label, curve in of.items()} for m, of in curves.items()},
        "clients": {"metric": metric, "scopes": {s: _histograms(of) for s, of in clients.items()}},
        "partitions": [
            {"run": owners[path], "counts": np.array(counts).T.tolist()}
            for path, counts in partitions.items()
            if not isinstance(counts, str)
        ],
    }


def _in_order(report: Report) -> list[tuple[str, Style]]:
    return [(group.label, report.styles[group.label]) for group in report.comparison.groups]


def _curve(curve: Curve) -> dict[str, Any]:
    found: dict[str, Any] = {"seeds": curve.seeds, "mean": _short(curve.mean)}
    if curve.seeds > 1:
        found |= {"low": _short(curve.low), "high": _short(curve.high)}
    return {**found, "axes": {name: _short(values) for name, values in curve.axes.items()}}


def _short(values: Iterable[float]) -> list[float | None]:
    """Five digits are more than a screen shows; JSON has no NaN."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in map(float, values)]


def _histograms(groups: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Shares of clients in bins that all groups have in common, by label, and the bins' edges."""
    together = np.concatenate([values[np.isfinite(values)] for values in groups.values()])
    is_share = len(together) and together.min() >= 0 and together.max() <= 1
    span = (math.floor(10 * min(together.min(), 0.9)) / 10, 1) if is_share else None
    bins = min(_BINS, max(8, math.isqrt(max(map(len, groups.values())))))
    edges = np.histogram_bin_edges(together, bins=bins, range=span)
    shares = {label: _short(np.histogram(values, edges)[0] / len(values)) for label, values in groups.items()}
    means = {label: float(f"{values.mean():.5g}") for label, values in groups.items()}
    return {"edges": _short(edges), "shares": shares, "means": means}


def _rows(report: Report) -> list[dict[str, Any]]:
    """The rows of the summary, cells with their texts, and numbers to sort by."""
    summary, drawn = report.summary, set(report.drawn)
    best = [summary.best(column) for column in range(len(summary.quantities))]
    found = []
    for row, (group, cells) in enumerate(zip(summary.groups, summary.cells, strict=True)):
        shown_cells = [
            {
                "texts": cell.texts(digits),
                "value": cell.mean if math.isfinite(cell.mean) else "",
                "best": row in best[column],
                "title": quantity.full_title,
            }
            for column, (cell, digits, quantity) in enumerate(
                zip(cells, summary.digits, summary.quantities, strict=True)
            )
        ]
        counted = len(group.counted)
        runs = str(counted) if counted == len(group.runs) else f"{counted} of {len(group.runs)}"
        style = report.styles[group.label]
        state = "" if group.counted[0].is_finished else group.counted[0].state
        found.append(
            {"label": group.label, "style": style, "cells": shown_cells, "runs": runs, "drawn": group.label in drawn}
            | {"state": state}
        )
    return found


def _settings(report: Report) -> list[tuple[str, list[str]]]:
    """The settings that differ: each group's values, by short name; empty for an argument that it does not have."""
    keys = list(report.comparison.names)
    return [
        (group.label, [shown(group.settings[key]) if key in group.settings else "" for key in keys])
        for group in report.comparison.groups
    ]


def _ledger(report: Report) -> dict[str, Any]:
    """Megabytes by group and column, a column a direction and payload, with widths of bars in percent."""
    table = report.payloads.pivot(index="group", columns=["direction", "payload"], values="mb")
    columns = sorted(table.columns, key=lambda c: (c[0] != "up", -np.nansum(table[c])))
    heads = [f"{direction}: {payload}" for direction, payload in columns]
    return _bars(report, heads, [table[column].to_dict() for column in columns])


def _seconds(report: Report) -> dict[str, Any]:
    """Seconds of a round by group and phase, with widths of bars."""
    table = report.phases.set_index("group")
    names = {"training": "training", "rest": "evaluation, logging"}
    return _bars(report, list(names.values()), [table[name].to_dict() for name in names])


def _bars(report: Report, heads: Sequence[str], columns: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    values = [value for column in columns for value in column.values() if math.isfinite(value)]
    largest, digits = max(values, default=0.0), digits_for(values)
    rows = []
    for label, style in _in_order(report):
        cells = [column.get(label, math.nan) for column in columns]
        if any(map(math.isfinite, cells)):
            shown_cells = [
                {"text": told(v, digits), "width": 100 * v / largest if largest else 0}
                if math.isfinite(v)
                else {"text": "", "width": 0}
                for v in cells
            ]
            rows.append({"label": label, "style": style, "cells": shown_cells})
    return {"heads": heads, "rows": rows}


def data_of(page: str) -> dict[str, Any]:
    """The data that a page's script draws."""
    text = page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    found: dict[str, Any] = json.loads(text)
    return found
