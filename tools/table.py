"""A table that is printed, and written as CSV and Markdown."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from rich import box
from rich import table as rich_table
from rich.console import Console

from lfl.report.tables import markdown


class Table:
    """Rows of text under a title.

    Args:
        title: what is shown.
        columns: their names; the first is left-aligned, the others are numbers.
    """

    def __init__(self, title: str, columns: list[str]) -> None:
        self.title, self.columns = title, columns
        self.rows: list[list[str]] = []
        self.notes: list[str] = []

    def add(self, *cells: str) -> None:
        """Add a row."""
        self.rows.append(list(cells))

    def show(self) -> None:
        """Print it."""
        table = rich_table.Table(box=box.SIMPLE_HEAD, title=self.title, title_justify="left")
        for position, column in enumerate(self.columns):
            table.add_column(column, justify="right" if position else "left")
        for row in self.rows:
            table.add_row(*row)
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(table)
        for note in self.notes:
            console.print(note, highlight=False)

    def write(self, folder: Path, name: str = "table") -> None:
        """Write ``name.csv`` and ``name.md`` into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([self.columns, *self.rows])
        (folder / f"{name}.md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """The table in Markdown, with its title and notes."""
        return "\n".join([f"**{self.title}**", "", *markdown(self.columns, self.rows), "", *self.notes]).rstrip() + "\n"
