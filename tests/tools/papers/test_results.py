"""The tables of docs/results/ have the numbers that studies have left."""

import math
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from tools import REPOSITORY
from tools.papers import ssgd
from tools.papers.kept import KEPT, Number, read

PAGES = sorted((REPOSITORY / "docs" / "results").glob("*.md"))
# What the paper says, what a row is of, and what is not kept. The times of Top-k without indices follow from Top-k's.
OTHERS = ("paper", "ours / paper", "over seeds", "lr", "seeds", "rounds", "r", "het", "sent", "L")
COMMAND = re.compile(r"python -m tools\.papers\.(\w+)((?: [\w.-]+)*)")
NUMBER = re.compile(r"[-+]?(?:NaN|\d[\d,]*(?:\.(\d+))?(?:e([-+]\d+))?)")


@dataclass(frozen=True)
class Table:
    """A table of a page, and the studies that the last command above it names.

    Attributes:
        place: where it is.
        studies: their names, of those that have left numbers.
        heads: its columns.
        rows: its cells.
    """

    place: str
    studies: list[str]
    heads: list[str]
    rows: list[list[str]]


def studies_of(text: str) -> list[str]:
    """The studies of the commands in a text that have left numbers."""
    named = [(found[1], name) for found in COMMAND.finditer(text) for name in found[2].split()]
    files = [file for tool, name in named for file in (name, f"{tool}-{name}", f"{tool.partition('_')[0]}-{name}")]
    return [file for file in dict.fromkeys(files) if (KEPT / f"{file}.csv").exists()]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def tables(page: Path) -> Iterator[Table]:
    """The tables of a page that stand below a command."""
    studies: list[str] = []
    blocks = page.read_text(encoding="utf-8").replace("\n\n", "\n\n\0").split("\0")
    for number, block in enumerate(blocks):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("#"):
            studies = []
        elif lines and lines[0].startswith("|"):
            if studies:
                yield Table(f"{page.stem}-{number}", studies, cells(lines[0]), [cells(line) for line in lines[2:]])
        else:
            studies = studies_of(" ".join(lines)) or studies


def by_run(numbers: list[Number]) -> list[list[Number]]:
    """The numbers of all runs of a method, for each quantity and setting."""

    def key(number: Number) -> tuple[str, str, str]:
        return number.method, number.setting, number.quantity

    return [list(group) for _, group in groupby(sorted(numbers, key=key), key=key)]


def statistics_of(numbers: list[Number]) -> Iterator[float]:
    """What a table may say of runs: their mean, their median, or each of them."""
    values = [number.value for number in numbers]
    finite = [value for value in values if math.isfinite(value)]
    yield from values
    if finite:  # a median counts those that never got there, too
        yield from (statistics.mean(finite), statistics.median(finite), statistics.median(values))


def says(cell: str, known: list[float]) -> bool:
    """Return whether the first number of a cell is one of those known, or a million times smaller."""
    found = NUMBER.search(cell)
    if found is None:
        return True
    if found[0] == "NaN":
        return any(map(math.isnan, known))
    told = float(found[0].replace(",", ""))
    half = 0.5001 * 10.0 ** (int(found[2] or 0) - len(found[1] or ""))
    return any(abs(value * unit - told) <= half + 1e-5 * abs(told) for value in known for unit in (1.0, 1e-6))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_say_what_was_kept(page: Path) -> None:
    for table in tables(page):
        known: dict[str, list[float]] = {}
        for study in table.studies:
            for group in by_run(read(KEPT / f"{study}.csv")):
                known.setdefault(group[0].method, []).extend(statistics_of(group))
        every = [value for values in known.values() for value in values]
        for row in table.rows:
            for head, cell in list(zip(table.heads, row, strict=True))[1:]:
                if head not in OTHERS and not head.startswith("Mbit") and row[0] != ssgd.INDICES_FREE:
                    assert says(cell, known.get(row[0], every)), f"{table.place}: {row[0]}, {head}: {cell}"


def test_a_number_is_found_to_its_last_digit() -> None:
    assert says("90.2 ± 1.3", [90.249])
    assert not says("90.2 ± 1.3", [90.26])
    assert says("1.58e+03", [1582.0])
    assert not says("1.58e+03", [1590.0])
    assert says("4.61 (4.54 to 4.83)", [4.612e6])
    assert not says("NaN", [4.6])
    assert says("never", [])


def test_tables_are_found_below_their_commands() -> None:
    found = [(page.stem, table.studies) for page in PAGES for table in tables(page)]
    assert ("ssf", ["ssf-mlp"]) in found
    assert ("srpfl", ["stragglers-dynamic"]) in found
    assert len(found) >= 18
