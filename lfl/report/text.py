"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lfl.report.content import Report
from lfl.report.settings import shown
from lfl.report.tables import Summary, markdown

_UNKNOWN = "\N{EN DASH}"


def render_text(report: Report, pictures: Sequence[Path]) -> str:
    """Make ``report.md``.

    Args:
        report: what it says.
        pictures: figures, by their paths from the file.
    """
    summary, comparison = report.summary, report.comparison
    heads = ["group", "runs", *(quantity.full_title for quantity in summary.quantities)]
    lines = [
        f"# {report.title}",
        "",
        report.sentence,
        "",
        *markdown(heads, _rows(summary)),
        "",
        *_paragraphs(report.explanations),
    ]
    if comparison.names:
        settings = [
            [g.label, *(shown(g.settings[key]) if key in g.settings else "" for key in comparison.names)]
            for g in comparison.groups
        ]
        columns = ["group", *comparison.names.values()]
        lines += ["## What differs", "", *markdown(columns, settings, len(columns)), ""]
    if report.shared:
        lines += ["## What all share", "", *(f"- `{key}`: {value}" for key, value in report.shared), ""]
    if pictures:
        lines += ["## Figures", "", *_paragraphs([report.selection] if report.selection else [])]
        lines += [*(f"![{path.stem}]({path.as_posix()})" for path in pictures), ""]
    if len(report.payloads):
        sent = [[row.group, row.direction, row.payload, f"{row.mb:,.4g}"] for row in report.payloads.itertuples()]
        lines += ["## Ledger", "", *markdown(["group", "direction", "payload", "MB"], sent, 3), ""]
    if len(report.phases):
        spent = [[row.group, f"{row.training:.4g}", f"{row.rest:.4g}"] for row in report.phases.itertuples()]
        lines += ["## Seconds of a round", "", *markdown(["group", "training", "evaluation, logging"], spent), ""]
    if report.notes:
        lines += ["## Runs", "", *(f"- {note}" for note in report.notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(summary: Summary) -> list[list[str]]:
    """The rows of the summary: the best mean of a column is bold, as on the page, and a dash is no value."""
    best = [summary.best(column) for column in range(len(summary.quantities))]
    rows = []
    for row, (group, cells) in enumerate(zip(summary.groups, summary.cells, strict=True)):
        texts = [cell.text(digits) or _UNKNOWN for cell, digits in zip(cells, summary.digits, strict=True)]
        marked = [f"**{text}**" if row in best[column] else text for column, text in enumerate(texts)]
        rows.append([group.label, str(len(group.counted)), *marked])
    return rows


def _paragraphs(sentences: Sequence[str]) -> list[str]:
    return [line for sentence in sentences for line in (sentence, "")]
