"""Rows of CSV files without a header, as some data sets are published."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from lfl.data.columns import DataError


def rows_of(path: Path, columns: Sequence[str], encoding: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a file, each with its number, which counts from 1.

    Args:
        path: of the file.
        columns: names of the columns, for errors.
        encoding: of its characters.

    Raises:
        DataError: a row has another number of columns, the characters are in another encoding, or there are no rows.
    """
    number = 0
    wanted = f"{len(columns)} columns ({', '.join(columns)})"
    try:
        with path.open(encoding=encoding, newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if len(row) != len(columns):
                    raise DataError(
                        f"Row {number} of {str(path)!r} has {len(row)} columns, not {wanted}: it is damaged."
                    )
                yield number, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{str(path)!r} is damaged behind row {number}: {error}.") from error
    if not number:
        raise DataError(f"{str(path)!r} is empty: it must have rows of {wanted}.")
