"""The best and last values of a run's metrics, and the table that shows them at the end of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lfl.reporting.formats import DOWN, LOSS, UP, direction_of, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table


class RunSummary:
    """Keeps the best and the last value of every metric of a run, round by round.

    Example:
        >>> summary = RunSummary()
        >>> summary.update(1, {"val_acc": 0.75, "train/loss": 0.5})
        >>> summary.update(2, {"val_acc": 0.5, "train/loss": 0.25})
        >>> summary.best("val_acc"), summary.last("val_acc")
        ((0.75, 1), (0.5, 2))
    """

    def __init__(self) -> None:
        self.num_rounds = 0
        self.seconds = 0.0
        self._records: dict[str, _Record] = {}
        self._clock = time.monotonic()

    def start(self) -> None:
        """Restart the clock, so that the time since the last round, or since loading a checkpoint, does not count."""
        self._clock = time.monotonic()

    def update(self, round: int, metrics: Mapping[str, float], directions: Mapping[str, int] | None = None) -> None:
        """Add the metrics of the round that has just ended.

        Args:
            round: its number.
            metrics: its metrics.
            directions: whether metrics should be large or small, where that is known otherwise than by their names.
        """
        now = time.monotonic()
        self.seconds += now - self._clock
        self._clock = now
        self.num_rounds += 1
        for key, value in metrics.items():
            record = self._records.get(key)
            if record is None:
                record = self._records[key] = _Record(direction_of(key, directions))
            record.update(float(value), round)

    def best(self, key: str) -> tuple[float, int] | None:
        """The best value of a metric and its round; None if it is unknown, or its name does not tell what is better."""
        record = self._records.get(key)
        return None if record is None or record.best_round is None else (record.best, record.best_round)

    @property
    def bests(self) -> dict[str, tuple[float, int]]:
        """The best value of each metric, with its round; without those whose name does not tell what is better."""
        found = {key: self.best(key) for key in self._records}
        return {key: best for key, best in found.items() if best is not None}

    def last(self, key: str) -> tuple[float, int] | None:
        """The last value of a metric and its round; None if it was never logged."""
        record = self._records.get(key)
        return None if record is None else (record.last, record.last_round)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, as numbers and strings."""
        return {
            "num_rounds": self.num_rounds,
            "seconds": self.seconds,
            "records": {key: asdict(record) for key, record in self._records.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint, and restart the clock."""
        self.num_rounds = state["num_rounds"]
        self.seconds = state["seconds"]
        self._records = {key: _Record(**record) for key, record in state["records"].items()}
        self.start()

    def render(self, directory: str | Path | None = None) -> Table:
        """Make a table of the validation metrics and the loss, with rounds, time, bytes and the run's folder below.

        Args:
            directory: The run's folder; not shown by default.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        keys = [key for key in self._records if key.rpartition("/")[2].startswith("val") or key == LOSS]
        metrics = Table("metric", box=box.SIMPLE_HEAD)
        for heading in ("best", "round", "last", "round"):
            metrics.add_column(heading, justify="right")
        for key in sorted(keys, key=lambda key: key == LOSS):
            metrics.add_row(key, *_cells(self.best(key)), *_cells(self.last(key)))
        # The lines below are rows of a grid around the metrics, since a caption would be wrapped to their width.
        table = Table.grid()
        if keys:
            table.add_row(metrics)
        for line in self._lines(directory):
            table.add_row(Text(line, overflow="fold"))
        return table

    def _lines(self, directory: str | Path | None) -> list[str]:
        count = "1 round" if self.num_rounds == 1 else f"{self.num_rounds} rounds"
        per_round = f", {format_seconds(self.seconds / self.num_rounds)} per round" if self.num_rounds else ""
        lines = [f"{count} in {format_seconds(self.seconds)}{per_round}"]
        totals = [(name, self.last(key)) for name, key in (("up", UP), ("down", DOWN))]
        sent = [f"{name} {format_bytes(total[0])}" for name, total in totals if total is not None]
        if sent:
            lines.append(", ".join(sent))
        if directory is not None:
            lines.append(str(directory))
        return lines


@dataclass
class _Record:
    """The best and the last value of one metric; ``direction`` is 1 (higher is better), -1 or 0 (unknown)."""

    direction: int
    best: float = math.nan
    best_round: int | None = None
    last: float = math.nan
    last_round: int = 0

    def update(self, value: float, round_number: int) -> None:
        self.last = value
        self.last_round = round_number
        is_better = self.best_round is None or (value - self.best) * self.direction > 0
        if self.direction and is_better and not math.isnan(value):
            self.best = value
            self.best_round = round_number


def _cells(value: tuple[float, int] | None) -> tuple[str, str]:
    return ("", "") if value is None else (f"{value[0]:.4g}", str(value[1]))


def metrics_table(metrics: Mapping[str, float]) -> Table:
    """Make a table of the metrics of one evaluation."""
    from rich import box
    from rich.table import Table

    table = Table("metric", "value", box=box.SIMPLE_HEAD)
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}")
    return table
