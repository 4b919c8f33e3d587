"""Metrics in CSV files: one row per round, with exact numbers.

``metrics.csv`` holds what the algorithm computed, and ``timing.csv`` the measured times (names that start with
``time/``). Two runs with the same seed therefore write the same bytes to ``metrics.csv``.
"""

import csv
import os
import warnings
import weakref
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger
from typing_extensions import override

from lfl.storage.files import write_error, write_file
from lfl.storage.fingerprint import describe
from lfl.storage.folders import CONFIG_FILE, HPARAMS_FILE, METRICS_FILE, TIMING_FILE

TIMING_PREFIX = "time/"

_ROUND = "round"
# O_BINARY exists on Windows only, where the newline would otherwise be translated.
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


class CSVLogger(Logger):
    """Writes one row per round to ``metrics.csv``, and measured times to ``timing.csv``; settings to ``hparams.yaml``.

    What is logged of a round in several calls, one after another, is one row.
    Each row is written at once, without a buffer, so a run that is killed keeps every round that it finished. A metric
    that is logged for the first time adds a column on the right; its cells of earlier rounds are empty. Numbers are
    written such that reading them gives exactly the same numbers.

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
        directory: The run's folder, made at the first row. Existing files are continued.
    """

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        self.directory = Path(directory)
        self._metrics = _Table(self.directory / METRICS_FILE)
        self._timing = _Table(self.directory / TIMING_FILE)
        self._tables = {METRICS_FILE: self._metrics, TIMING_FILE: self._timing}

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
        """Append the metrics of round ``step`` to the two files; a file without a metric among them gets no row.

        Raises:
            ValueError: if ``step`` is None.
            OSError: a file cannot be written. The metrics are kept: the next round's call writes them first, and so
                does a run that is resumed (``state_dict``).
        """
        if step is None:
            raise ValueError(f"`step=None` for the metrics {sorted(metrics)}; give the round: `step=round`.")
        timing = {key: value for key, value in metrics.items() if key.startswith(TIMING_PREFIX)}
        others = {key: value for key, value in metrics.items() if key not in timing}
        # All rows are there before the first is written: none is lost if that fails.
        for table, row in ((self._metrics, others), (self._timing, timing)):
            if row:
                table.waiting.append((step, row))
        self._metrics.write_waiting()
        self._timing.write_waiting()

    def state_dict(self) -> dict[str, Any]:
        """The rows that could not be written, for a checkpoint."""
        return {name: table.waiting for name, table in self._tables.items() if table.waiting}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the rows that an earlier run could not write; they come after those that it has written."""
        for name, table in self._tables.items():
            table.waiting = [(int(step), dict(metrics)) for step, metrics in state.get(name, ())]

    @override
    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Write the settings to ``hparams.yaml``, as Lightning's logger does; not beside a command line's own file."""
        del args, kwargs
        if (self.directory / CONFIG_FILE).exists():
            return
        settings = describe(vars(params) if isinstance(params, Namespace) else params)
        write_file(self.directory / HPARAMS_FILE, yaml.safe_dump(settings, sort_keys=False))

    @rank_zero_only
    def continue_from(self, directory: str | Path, last_round: int) -> None:
        """Copy the rows of a resumed run, so that the files become those of a run that was never interrupted.

        Columns that are empty in all copied rows are left out. They are added where an uninterrupted run would have
        added them.

        Args:
            directory: The folder of the run that is resumed; may be this logger's own, whose later rows are removed.
            last_round: The last round to copy, after which the checkpoint was written.

        Raises:
            RuntimeError: if this logger has already written a row.
            FileExistsError: if this logger's folder is another one and already has rows.
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
    """Read the rounds of a file that `CSVLogger` wrote, each with its metrics; an incomplete last line is left out.

    Args:
        path: The file; a file that does not exist has no rounds.
        last_round: The last round to read; all rounds by default.
    """
    for cells in _read(Path(path), last_round):
        yield int(cells[_ROUND]), {key: _parse(cell) for key, cell in cells.items() if cell and key != _ROUND}


class _Table:
    """One CSV file, to which rows are appended and columns are added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: dict[str, None] = {}  # in order of first appearance, without the round
        self.waiting: list[tuple[int, dict[str, float]]] = []  # rows that are not written yet
        self._last: tuple[int, dict[str, float]] | None = None  # the row that this object has written last
        self._file: int | None = None
        self._closer: weakref.finalize[[int], _Table] | None = None

    def write_waiting(self) -> None:
        """Append the rows that wait; those that cannot be written wait on."""
        try:
            while self.waiting:
                self._append(*self.waiting[0])
                del self.waiting[0]
        except OSError as error:
            self.close()  # half a line may be there: opening the file again takes it away
            raise write_error(error, self.path) from error

    def _append(self, round_number: int, metrics: Mapping[str, float]) -> None:
        """Append a row; or add to the last one, if it is of the same round."""
        if self._file is None:
            # An existing file is rewritten first: if its run was killed while writing, the last line has no end, and
            # the next row would be appended to that line.
            self._copy_rows(self.path, None)
            self._file = self._open()
        new = [key for key in metrics if key not in self.columns]
        if new:
            # The header is at the start of the file, so a new column means to write the file again. That is rare: most
            # metrics appear in the first round.
            self.close()
            self._replace([*self.columns, *new], _read(self.path, None))
            self._file = self._open()
        before = self._last if self._last is not None and self._last[0] == round_number else None
        row = {**(before[1] if before is not None else {}), **metrics}
        if before is None:
            self._write(self._file, self._line(round_number, row))
        else:
            self._write_over(self._line(*before), self._line(round_number, row))
        self._last = (round_number, row)

    def _line(self, round_number: int, metrics: Mapping[str, float]) -> bytes:
        cells = (metrics.get(column) for column in self.columns)
        return (",".join([str(round_number), *("" if v is None else _format(v) for v in cells)]) + "\n").encode()

    def _write_over(self, old: bytes, new: bytes) -> None:
        """Write another last line. At every moment the file has one of the two, for a row only grows."""
        new = new if len(new) >= len(old) else new.rstrip(b"\n") + b" " * (len(old) - len(new)) + b"\n"
        file = os.open(self.path, _APPEND & ~os.O_APPEND)
        try:
            os.lseek(file, -len(old), os.SEEK_END)
            self._write(file, new)
        finally:
            os.close(file)

    @staticmethod
    def _write(file: int, rest: bytes) -> None:
        while rest:  # the system may write less than it is given, up to the end of a full disk
            rest = rest[os.write(file, rest) :]

    def continue_from(self, source: Path, last_round: int) -> None:
        if self._file is not None:
            raise RuntimeError(f"`continue_from` must come before the first row of `{self.path}`.")
        if source.resolve() != self.path.resolve() and any(True for _ in _read(self.path, None)):
            raise FileExistsError(
                f"`{self.path}` has rows already, which those of `{source}` would replace. Choose a new folder."
            )
        self._copy_rows(source, last_round)
        self.write_waiting()

    def close(self) -> None:
        if self._closer is not None:
            self._closer()
        self._file = self._closer = None

    def _open(self) -> int:
        # A file descriptor, not a file object, which would warn if nobody closes it. In append mode one `write` is one
        # whole row at the end of the file.
        file = os.open(self.path, _APPEND, 0o666)
        self._closer = weakref.finalize(self, os.close, file)
        return file

    def _copy_rows(self, source: Path, last_round: int | None) -> None:
        """Replace this file by the rows of ``source`` up to ``last_round``, with those columns that have a value."""
        filled: set[str] = set()
        for cells in _read(source, last_round):
            filled.update(key for key, cell in cells.items() if cell)
        if filled or source == self.path:
            # The header has the columns in the order in which they first appeared; that stays true for fewer rows.
            columns = [key for key in _read_header(source) if key in filled and key != _ROUND]
            self._replace(columns, _read(source, last_round))

    def _replace(self, columns: list[str], rows: Iterable[dict[str, str]]) -> None:
        """Write the file again, with these columns and rows; it is complete at every moment."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                # The writer quotes names that hold a comma. Cells are copied as text, so that no number changes.
                csv.writer(file, lineterminator="\n").writerow([_ROUND, *columns])
                for cells in rows:
                    file.write(",".join(cells.get(column, "") for column in (_ROUND, *columns)) + "\n")
            os.replace(temporary, self.path)
        except OSError:
            temporary.unlink(missing_ok=True)  # on a full disk, a checkpoint needs its room
            raise
        self.columns = dict.fromkeys(columns)


def _read_header(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


def _read(path: Path, last_round: int | None) -> Iterator[dict[str, str]]:
    """Read the rows as text by column, without rounds after ``last_round`` and without an incomplete last line."""
    if not path.exists():
        return
    header = _read_header(path)
    with path.open(encoding="utf-8", newline="") as file:
        file.readline()
        for line in file:
            if not line.endswith("\n"):  # its run was killed while it wrote the line
                return
            cells = dict(zip(header, line.rstrip("\r\n").split(","), strict=False))
            if last_round is None or int(cells[_ROUND]) <= last_round:
                yield cells


def _format(value: float) -> str:
    # `repr` is the shortest text that gives the same float. Of a NumPy scalar or a tensor it is no number.
    return repr(value) if type(value) in (float, int) else repr(float(value))


def _parse(cell: str) -> float:
    try:
        return int(cell)
    except ValueError:
        return float(cell)
