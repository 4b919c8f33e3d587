"""The runs of a sweep on the terminal: a live table, or a line for each run that ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from lfl.reporting.formats import LOSS, format_seconds
from lfl.reporting.progress import can_draw, console_of
from lfl.storage.folders import METRICS_FILE
from lfl.sweep.folder import attempts, last_metrics

if TYPE_CHECKING:
    from rich.table import Table

State = Literal["waiting", "running", "finished", "failed", "interrupted"]
_STYLES = {"running": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow", "waiting": "dim"}
_OTHER_LINES = 6  # of the table: its head, and what stands around it


@dataclass
class RunView:
    """A run as the table shows it.

    Attributes:
        name: of the run.
        folder: its folder.
        max_rounds: that it is to do.
        state: how far it is.
        metrics: the last value of each, with ``round``.
    """

    name: str
    folder: Path
    max_rounds: int
    state: State = "waiting"
    metrics: dict[str, float] = field(default_factory=dict)
    _begun: float = 0.0
    _first_round: int | None = None
    _seen: tuple[str, int] = ("", 0)

    @property
    def round(self) -> int:
        """The last round it finished."""
        return int(self.metrics.get("round", 0))

    def begin(self) -> None:
        """Record that it runs."""
        self.state, self._begun, self._first_round = "running", time.monotonic(), None

    def look(self) -> None:
        """Read its metrics, if there are new ones."""
        newest = next(reversed(attempts(self.folder)), None)
        try:
            seen = (str(newest), (newest / METRICS_FILE).stat().st_mtime_ns) if newest is not None else ("", 0)
        except OSError:
            return
        if newest is not None and seen != self._seen:
            with suppress(ValueError):  # a row was being written: the next look finds it
                self._seen, self.metrics = seen, last_metrics(newest)
            if self._first_round is None:
                # Rounds before a checkpoint took their time in another process.
                self._first_round, self._begun = self.round, time.monotonic()

    def seconds_left(self) -> float | None:
        """Seconds to its last round, by the rounds since it was begun; None if that is not known."""
        done = self.round - (self._first_round if self._first_round is not None else self.round)
        if self.state != "running" or done <= 0:
            return None
        return (time.monotonic() - self._begun) / done * (self.max_rounds - self.round)

    def values(self) -> list[tuple[str, float]]:
        """The loss and the accuracy, or another metric of the validation, by name."""
        names = [name for name in self.metrics if name.rpartition("/")[2].startswith("val")]
        accuracy = "val_acc" if "val_acc" in names else next((n for n in names if "acc" in n), next(iter(names), ""))
        return [(name, self.metrics[name]) for name in (LOSS, accuracy) if name in self.metrics]


class SweepDisplay:
    """Shows the runs of a sweep.

    Args:
        views: the runs.
        jobs: how many run at once.
        stream: where to write; a table is drawn where it is a terminal.
    """

    def __init__(self, views: Sequence[RunView], jobs: int, stream: TextIO) -> None:
        from rich.live import Live

        self._views, self._jobs, self._stream = views, jobs, stream
        self._ended = sum(view.state == "finished" for view in views)
        self._durations: list[float] = []
        self._begun: dict[str, float] = {}
        self._console = console_of(stream, is_live=True) if can_draw(stream) else None
        self._live = Live(console=self._console, auto_refresh=False) if self._console is not None else None

    def __enter__(self) -> SweepDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self.draw()
            self._live.stop()

    def begun(self, view: RunView) -> None:
        """Show that a run begins."""
        view.begin()
        self._begun[view.name] = time.monotonic()
        self.draw()

    def ended(self, view: RunView, state: State, message: str) -> None:
        """Show how a run has ended."""
        view.look()
        view.state = state
        self._ended += 1
        if state == "finished":
            self._durations.append(time.monotonic() - self._begun[view.name])
        if self._live is None:
            values = [f"{name} {value:.4g}" for name, value in view.values()]
            said = ", ".join([f"round {view.round}/{view.max_rounds}", *values, *([message] if message else [])])
            self.message(f"[{self._ended}/{len(self._views)}] {view.name}: {state}, {said}")
        self.draw()

    def message(self, text: str) -> None:
        """Print a line, above the table where there is one."""
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

    def draw(self) -> None:
        """Look at the runs that run, and draw the table anew."""
        if self._live is None or self._console is None:
            return
        for view in self._views:
            if view.state == "running":
                view.look()
        self._live.update(self._table(self._console.height - _OTHER_LINES), refresh=True)

    def _table(self, height: int) -> Table:
        from rich import box
        from rich.table import Table

        table = Table("run", "state", box=box.SIMPLE_HEAD, caption=self._caption(), caption_justify="left")
        for heading in ("round", "loss", "validation", "left"):
            table.add_column(heading, justify="right", no_wrap=True)
        for view in _most_telling(self._views, max(height, 1)):
            values = dict(view.values())
            loss = values.pop(LOSS, None)
            left = view.seconds_left()
            table.add_row(
                view.name,
                view.state,
                f"{view.round}/{view.max_rounds}",
                "" if loss is None else f"{loss:.4g}",
                "".join(f"{value:.4g}" for value in values.values()),
                "" if left is None else format_seconds(round(left)),
                style=_STYLES[view.state],
            )
        return table

    def _caption(self) -> str:
        counts = Counter[str](view.state for view in self._views)
        parts = [f"{counts[state]} {state}" for state in _STYLES if counts[state]]
        left = self._seconds_left(counts)
        return ", ".join([*parts, *([f"about {format_seconds(round(left))} left"] if left else [])])

    def _seconds_left(self, counts: Mapping[str, int]) -> float | None:
        """Seconds to the end of the sweep, by the runs that have finished; None if none has."""
        if not self._durations:
            return None
        mean = sum(self._durations) / len(self._durations)
        now = time.monotonic()
        running = [max(0.0, mean - (now - self._begun[v.name])) for v in self._views if v.state == "running"]
        return (sum(running) + mean * counts["waiting"]) / self._jobs


def _most_telling(views: Sequence[RunView], number: int) -> list[RunView]:
    """As many runs as there is room for, in their order: those that run and have failed first, then the newest ends."""
    order = {"running": 0, "failed": 1, "interrupted": 2, "finished": 3, "waiting": 4}
    places = range(len(views))
    chosen = sorted(places, key=lambda n: (order[views[n].state], -n if views[n].state == "finished" else n))
    return [views[place] for place in sorted(chosen[:number])]
