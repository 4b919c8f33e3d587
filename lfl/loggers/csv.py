"""Metrics in a plain file: one row per round, complete, exact, and equal for equal runs.

``metrics.csv`` holds what the algorithm computed, ``timing.csv`` what the clock said (keys that start with ``time/``):
two runs of the same seed write the same bytes to the first.
"""

import csv
import os
import warnings
import weakref
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger
from typing_extensions import override

METRICS_FILE = "metrics.csv"
TIMING_FILE = "timing.csv"
TIMING_PREFIX = "time/"

_ROUND = "round"
# O_BINARY exists on Windows only, where the newline would otherwise be translated.
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


class CSVLogger(Logger):
    """One row per round in ``metrics.csv`` and, for wall-clock metrics, in ``timing.csv``.

    A row is one unbuffered write, so a run that is killed keeps every round it finished. A metric that appears for the
    first time adds a column at the right; the cells of earlier rounds are empty. Floats are written so that they are
    read back exactly.

    Example:
        >>> import tempfile
        >>> logger = CSVLogger(tempfile.mkdtemp())
        >>> logger.log_metrics({"train/loss": 0.5, "time/round": 0.01}, step=1)
        >>> logger.log_metrics({"train/loss": 0.25, "val_acc": 0.75}, step=2)
        >>> print((logger.directory / "metrics.csv").read_text(), end="")
        round,train/loss,val_acc
        1,0.5,
        2,0.25,0.75

    Args:
        directory: The run's folder; made at the first row. A file that is there already is continued.
    """

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        self.directory = Path(directory)
        self._metrics = _Table(self.directory / METRICS_FILE)
        self._timing = _Table(self.directory / TIMING_FILE)

    @property
    @override
    def name(self) -> str:
        return self.directory.name

    @property
    @override
    def version(self) -> str:
        return ""

    @property
    @override
    def save_dir(self) -> str:
        return str(self.directory)

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append the metrics of round ``step``: a row to each of the two files that has a metric among them.

        Raises:
            ValueError: if there is no ``step``.
        """
        if step is None:
            raise ValueError(f"`step=None` for the metrics {sorted(metrics)}; give the round: `step=round`.")
        timing = {key: value for key, value in metrics.items() if key.startswith(TIMING_PREFIX)}
        if timing:
            self._timing.append(step, timing)
            metrics = {key: value for key, value in metrics.items() if key not in timing}
        if metrics:
            self._metrics.append(step, metrics)

    @override
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        del params, args, kwargs  # the run's config.yaml has them

    @rank_zero_only
    def continue_from(self, directory: str | Path, last_round: int) -> None:
        """Start with the rows of another run up to a round, so that a resumed run's files are those of an unbroken one.

        Columns that no kept row fills are left out: they come back where the unbroken run would have added them.

        Args:
            directory: The folder of the run that is resumed; this logger's own folder drops its later rows.
            last_round: The last round to keep, the one that the checkpoint was made after.

        Raises:
            RuntimeError: if this logger has written a row already.
            FileExistsError: if this logger's folder has rows of its own.
        """
        source = Path(directory)
        if not (source / METRICS_FILE).exists():
            warnings.warn(
                f"`{source}` has no {METRICS_FILE}: that of this run starts after round {last_round}. "
                "To have the earlier rounds too, resume in the folder that the run wrote.",
                stacklevel=2,
            )
        self._metrics.continue_from(source / METRICS_FILE, last_round)
        self._timing.continue_from(source / TIMING_FILE, last_round)

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the files; a later row opens them again."""
        del status
        self._metrics.close()
        self._timing.close()


def read_rows(path: str | Path, last_round: int | None = None) -> Iterator[tuple[int, dict[str, float]]]:
    """The rounds of a file that `CSVLogger` wrote and the metrics of each; a torn last line is left out.

    Args:
        path: The file; one that does not exist has no rows.
        last_round: The last round to give; all by default.
    """
    for cells in _read(Path(path), last_round):
        yield int(cells[_ROUND]), {key: _parse(cell) for key, cell in cells.items() if cell and key != _ROUND}


class _Table:
    """One CSV file that rows are appended to and that grows by columns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: dict[str, None] = {}  # in order of first appearance, without the round
        self._file: int | None = None
        self._closer: weakref.finalize[[int], _Table] | None = None

    def append(self, round_number: int, metrics: Mapping[str, float]) -> None:
        if self._file is None:
            # A line that was torn when another run was killed would swallow the row that is appended to it.
            self._take_over(self.path, None)
            self._file = self._open()
        new = [key for key in metrics if key not in self.columns]
        if new:
            self.close()
            self._replace([*self.columns, *new], _read(self.path, None))
            self._file = self._open()
        cells = [str(round_number)]
        for column in self.columns:
            value = metrics.get(column)
            cells.append("" if value is None else _format(value))
        os.write(self._file, (",".join(cells) + "\n").encode())

    def continue_from(self, source: Path, last_round: int) -> None:
        if self._file is not None:
            raise RuntimeError(f"`continue_from` must come before the first row of `{self.path}`.")
        if source.resolve() != self.path.resolve() and any(True for _ in _read(self.path, None)):
            raise FileExistsError(
                f"`{self.path}` has rows already, which those of `{source}` would replace. Choose a new folder."
            )
        self._take_over(source, last_round)

    def close(self) -> None:
        if self._closer is not None:
            self._closer()
        self._file = self._closer = None

    def _open(self) -> int:
        # Not a file object: it would have to be unbuffered anyway, and one that is never closed warns.
        file = os.open(self.path, _APPEND, 0o666)
        self._closer = weakref.finalize(self, os.close, file)
        return file

    def _take_over(self, source: Path, last_round: int | None) -> None:
        """Make this file of the kept rows of ``source`` and of the columns that have a value in them."""
        filled: set[str] = set()
        for cells in _read(source, last_round):
            filled.update(key for key, cell in cells.items() if cell)
        if filled or source == self.path:
            # The header's order is that of first appearance, also among fewer rows.
            columns = [key for key in _read_header(source) if key in filled and key != _ROUND]
            self._replace(columns, _read(source, last_round))

    def _replace(self, columns: list[str], rows: Iterable[dict[str, str]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".new")
        with beside.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([_ROUND, *columns])
            for cells in rows:
                file.write(",".join(cells.get(column, "") for column in (_ROUND, *columns)) + "\n")
        os.replace(beside, self.path)
        self.columns = dict.fromkeys(columns)


def _read_header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


def _read(path: Path, last_round: int | None) -> Iterator[dict[str, str]]:
    """Rows as text, by column; rounds after ``last_round`` and a last line without its end are left out."""
    if not path.exists():
        return
    header = _read_header(path)
    with path.open(encoding="utf-8", newline="") as file:
        file.readline()
        for line in file:
            if not line.endswith("\n"):
                return
            cells = dict(zip(header, line.rstrip("\r\n").split(","), strict=False))
            if last_round is None or int(cells[_ROUND]) <= last_round:
                yield cells


def _format(value: float) -> str:
    # `repr` of a NumPy scalar or of a tensor is not a number's, so only Python's own go there directly.
    return repr(value) if type(value) in (float, int) else repr(float(value))


def _parse(cell: str) -> float:
    try:
        return int(cell)
    except ValueError:
        return float(cell)
