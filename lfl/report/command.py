"""The command ``lfl report``: from run folders to a page, tables and figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from lfl.plain_parser import PlainParser

if TYPE_CHECKING:
    from lfl.report.content import Report

# pandas and matplotlib are imported where they are needed: `lfl report --help` is quick.
_AXES = ("round", "mb", "mb_up", "mb_down", "sim", "seconds")
_MOST_PARTITIONS = 4
_DESCRIPTION = """\
Compares runs: reads folders that `lfl fit` left, groups them by the settings that differ between them (seeds are what
is averaged over), and writes report.html (one page that needs no network), report.md, CSV files and figures.
"""


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = PlainParser(
        "lfl report",
        prog="lfl report",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="*", default=["runs"], help="run folders, folders of them, patterns (default: runs)"
    )
    parser.add_argument("--output", type=Path, default=Path("report"), help="folder of the report (default: report)")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        help="what to compare (default: validation accuracy and losses); may be repeated, the first is in the table",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="METRIC=VALUE",
        help="also tell rounds, MB and seconds to a value, such as val_acc=0.9; may be repeated",
    )
    parser.add_argument("--x", choices=_AXES, default="round", help="what curves are drawn against at first")
    parser.add_argument("--log", choices=("x", "y", "xy"), default="", help="which axes of curves are logarithmic")
    parser.add_argument("--names", nargs="+", default=[], help="a label for each group, in the order of the report")
    parser.add_argument("--title", default="", help="over the page (default: the groups)")
    parser.add_argument(
        "--wandb",
        metavar="PROJECT",
        help="also log the page and its files to this project of W&B, in a run of its own; offline without a key",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; ends the process with one line, and code 2, where there is nothing to report."""
    options = options_of(arguments)
    from lfl.report.runs import ReportError
    from lfl.storage.files import told

    try:
        page = write(options)
    except (ReportError, OSError) as error:
        sys.stderr.write(f"lfl report: error: {told(error) if isinstance(error, OSError) else error}\n")
        raise SystemExit(2) from None
    sys.stdout.write(f"{page}\n")


def write(options: argparse.Namespace) -> Path:
    """Make the report that the options ask for; returns the page.

    Raises:
        ReportError: there are no runs, or not what is asked for in them; or W&B does not take the report.
        OSError: a file cannot be written.
    """
    from lfl.report.content import Report
    from lfl.report.groups import compare
    from lfl.report.wandb import check_installed, log_report

    if options.wandb is not None:
        check_installed()
    comparison = compare(options.runs)
    if options.names:
        comparison = comparison.renamed(options.names)
    report = Report.of(comparison, options.metric, options.target, options.x, options.title, options.log)
    for note in report.notes:
        sys.stderr.write(f"lfl report: {note}\n")
    page = write_report(report, options.output)
    if options.wandb is not None:
        log_report(page, options.wandb, report.title)
    return page


def write_report(report: Report, output: Path) -> Path:
    """Write all files of a report; returns the page."""
    from lfl.report.content import curves_frame
    from lfl.report.html import INSTALL, plotly_script, render
    from lfl.report.partitions import Counting, distinct, name_of_figure
    from lfl.report.text import render_text
    from lfl.storage.files import write_file

    figures = output / "figures"
    different = distinct(_one_of_each_first(report))
    counting = Counting(different[:_MOST_PARTITIONS], figures)
    tables = {
        "summary": report.summary.frame(report.comparison.names),
        "curves": curves_frame(report),
        "ledger": report.payloads,
        "seconds": report.phases,
    }
    for name, table in tables.items():
        write_file(output / f"{name}.csv", table.to_csv(index=False))
    script = plotly_script()
    if script is None:
        sys.stderr.write(f"lfl report: {INSTALL}\n")
    pictures = draw(report, figures)
    partitions = counting.result()
    for number, counts in enumerate(partitions.values(), 1):
        if not isinstance(counts, str):
            pictures[name_of_figure(number)] = figures / f"{name_of_figure(number)}.svg"
    write_file(
        output / "report.md",
        render_text(report, [p.with_suffix(".png").relative_to(output) for p in pictures.values()]),
    )
    return write_file(
        output / "report.html", render(report, partitions, len(different), script, {} if script else pictures)
    )


def _one_of_each_first(report: Report) -> list[Path]:
    """The folders of all runs: the first one of each group, then the second ones, and so on."""
    groups = ([run.path for run in group.runs] for group in report.comparison.groups)
    return [path for paths in zip_longest(*groups) for path in paths if path is not None]


def draw(report: Report, folder: Path) -> dict[str, Path]:
    """Draw the figures of a report as PNG and SVG; returns the SVG files by what they show."""
    from lfl.report.curves import MOST_POINTS
    from lfl.report.figures import clients_figure, costs_figure, curves_figure, save

    found = {}
    axes = sorted(report.axes, key=lambda axis: axis != report.axis)  # the one that was asked for comes first
    curves = {label: report.curves[report.metric].get(label) for label in report.drawn}
    styled = {
        label: (curve.thinned(MOST_POINTS), report.styles[label])
        for label, curve in curves.items()
        if curve is not None
    }
    stem, groups = report.metric.replace("/", "_"), len(report.comparison.groups)
    for axis in axes:
        figure = curves_figure(styled, report.metric, axis, groups, report.log)
        if figure is not None:
            found[f"{report.metric} against {axis}"] = save(figure, folder, f"{stem}_{axis}")[-1]
    for axis in sorted(report.costs, key=lambda axis: axis != report.axis):
        costs = {label: (report.costs[axis][label], report.styles[label]) for label in report.drawn}
        figure = costs_figure(costs, report.targets, axis, groups)
        found[f"targets against {axis}"] = save(figure, folder, f"targets_{axis}")[-1]
    metric, scopes = report.clients
    for scope, values in scopes.items():
        shown = {label: (values[label], report.styles[label]) for label in report.drawn if label in values}
        found[f"clients {scope}"] = save(clients_figure(shown, metric, groups), folder, f"clients_{scope}")[-1]
    return found
