"""Metrics of single clients in a CSV file: one row a client, scope and evaluated round."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from lfl.storage.files import write_error

FILE = "clients.csv"
_FIRST = ("round", "scope", "client", "examples")

ClientRow = tuple[int, str, int, int, Mapping[str, float]]
"""Round, scope, client, number of its test examples, and its metrics by name."""


class ClientTable:
    """``clients.csv``: round, scope, client, examples, and a column for each metric.

    Every change is written beside the file, which is then replaced: whoever reads it finds whole rows. Numbers are
    written such that reading them gives exactly the same numbers; a metric that a client does not have is an empty
    cell.

    Args:
        path: the file; made with its first rows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: Iterable[ClientRow]) -> None:
        """Add rows; metrics that are new become columns on the right.

        Raises:
            OSError: the file cannot be written; it is then as it was.
        """
        rows = list(rows)
        columns = _header(self.path)[len(_FIRST) :]
        new = [name for name in dict.fromkeys(name for row in rows for name in row[4]) if name not in columns]
        added = (_line(row, [*columns, *new]) for row in rows)
        if new:
            kept = ([*cells, *("" for _ in new)] for cells in _cells(self.path))
            self._replace([[*_FIRST, *columns, *new]], kept, added)
        elif rows:
            self._replace((), (), added, start=self.path)

    def continue_from(self, source: Path, last_round: int) -> None:
        """Take over the rows of a run that is resumed, up to its checkpoint's round; nothing if there are rows here."""
        if self.path.exists() or not source.exists():
            return
        rows = [cells for cells in _cells(source) if int(cells[0]) <= last_round]
        header = _header(source)
        # As an uninterrupted run would have them so far: without columns that are empty yet.
        used = [place for place in range(len(header)) if place < len(_FIRST) or any(cells[place] for cells in rows)]
        if rows:
            self._replace([[header[place] for place in used]], ([cells[place] for place in used] for cells in rows))

    def _replace(self, *parts: Iterable[list[str]], start: Path | None = None) -> None:
        """Write the file anew: what ``start`` holds, then rows of cells."""
        temporary = self.path.with_name(f"{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            if start is not None:
                shutil.copyfile(start, temporary)
            with temporary.open("a", encoding="utf-8", newline="") as file:
                for rows in parts:
                    csv.writer(file, lineterminator="\n").writerows(rows)
            os.replace(temporary, self.path)
        except OSError as error:
            temporary.unlink(missing_ok=True)  # on a full disk, a checkpoint needs its room
            raise write_error(error, self.path) from error


def read_clients(path: Path) -> Iterator[ClientRow]:
    """Read the rows of a file that ``ClientTable`` wrote."""
    names = _header(path)[len(_FIRST) :]
    for round_number, scope, client, examples, *values in _cells(path):
        metrics = {name: float(value) for name, value in zip(names, values, strict=True) if value}
        yield int(round_number), scope, int(client), int(examples), metrics


def _line(row: ClientRow, columns: list[str]) -> list[str]:
    *first, metrics = row
    return [*map(str, first), *(repr(float(metrics[name])) if name in metrics else "" for name in columns)]


def _header(path: Path) -> list[str]:
    if not path.exists():
        return list(_FIRST)
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file))


def _cells(path: Path) -> Iterator[list[str]]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        next(reader)
        yield from reader
