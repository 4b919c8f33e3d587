"""Progress of a run: a bar of rich's on a terminal, plain lines of text elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from lfl.reporting.formats import DOWN, LOSS, UP, format_bytes, format_seconds

# Rich is imported only when a bar or table is drawn, to keep `lfl --help` and plain lines fast.
if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_DRAW_SECONDS = 0.2  # between two drawings of the bar
_LINE_SECONDS = 2.0  # between two lines
_FILE_WIDTH = 120  # characters of a table that is printed into a file


class ProgressDisplay:
    """Shows the progress of a run: a live bar on a terminal, plain lines elsewhere.

    Between two drawings, a call only stores its arguments and reads the clock. There is no thread that draws: if a
    worker of a DataLoader were forked while such a thread held its lock, the worker would wait for the lock for ever.

    Rounds are counted from 1 to ``max_rounds``.

    Args:
        enabled: False shows nothing at all.
        stream: Where to write; by default what ``sys.stdout`` is at the time.
        live: Whether to draw a bar; by default yes if ``stream`` is a terminal that can move its cursor.
    """

    def __init__(self, enabled: bool = True, stream: TextIO | None = None, live: bool | None = None) -> None:
        self.enabled = enabled
        self._stream = stream
        self._live = live
        self._view: _Bar | _Lines | None = None
        self._progress = _Progress(1, 0)
        self._due = math.inf  # when the next drawing is due, on the monotonic clock

    def start(self, first_round: int, max_rounds: int) -> None:
        """Start to show a run whose first round is ``first_round``: 1, or the one after the round of a checkpoint."""
        if not self.enabled:
            return
        stream = self._output()
        self._due = time.monotonic()
        self._progress = _Progress(first_round, max_rounds)
        self._view = (_Bar if self._is_live(stream) else _Lines)(stream, self._progress)

    def round_started(self, round: int, num_clients: int) -> None:
        """Record that a round of ``num_clients`` clients begins."""
        progress = self._progress
        progress.round = round
        progress.num_clients = num_clients
        progress.clients_done = 0

    def clients_done(self, count: int) -> None:
        """Record that ``count`` more clients of the round have finished."""
        self._progress.clients_done += count
        if self._view is not None and self._view.draws_clients:
            self._draw_if_due()

    def round_done(self, round: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a finished round; metrics that are missing keep their last value."""
        if self._view is None:
            return
        progress = self._progress
        progress.round = progress.rounds_done = round
        progress.num_clients = progress.clients_done = 0
        progress.take(metrics)
        self._draw_if_due()

    def message(self, text: str) -> None:
        """Print a line of text, above the bar where there is one."""
        if self._view is not None:
            self._view.message(text)
        elif self.enabled:
            print(text, file=self._output(), flush=True)

    def show(self, renderable: RenderableType, always: bool = False) -> None:
        """Print a renderable of rich, such as the table of `RunSummary.render`; to be called after `stop`.

        Args:
            renderable: What to print.
            always: Print it where no progress is shown, too.
        """
        if self.enabled or always:
            stream = self._output()
            console_of(stream, self._is_live(stream)).print(renderable)

    def stop(self) -> None:
        """Draw the last state and release the terminal; may be called more than once."""
        view = self._view
        self._view = None
        if view is not None:
            view.draw(self._progress)
            view.close()

    def _draw_if_due(self) -> None:
        if self._view is None or time.monotonic() < self._due:
            return
        self._view.draw(self._progress)
        # Counted from the end of the drawing. Counted from its start, a slow terminal would be drawn all the time.
        self._due = time.monotonic() + (_DRAW_SECONDS if self._view.draws_clients else _LINE_SECONDS)

    def _output(self) -> TextIO:
        return self._stream or sys.stdout

    def _is_live(self, stream: TextIO) -> bool:
        return can_draw(stream) if self._live is None else self._live


class _Progress:
    """The point to which a run has come: written by `ProgressDisplay`, read by `_Lines` and `_Bar`."""

    def __init__(self, first_round: int, max_rounds: int) -> None:
        self.first_round = self.round = first_round
        self.rounds_done = first_round - 1
        self.max_rounds = max_rounds
        self.num_clients = 0
        self.clients_done = 0
        self.accuracy_name: str | None = None
        self.evaluated = 0  # the round that the accuracy is of
        self.values: dict[str, float] = {}

    def take(self, metrics: Mapping[str, float]) -> None:
        """Keep the metrics that are shown. A tensor is read when it is drawn: reading it waits for the GPU."""
        if self.accuracy_name is None:
            names = [key for key in metrics if key.startswith("val") and "acc" in key]
            self.accuracy_name = "val_acc" if "val_acc" in names else next(iter(names), None)
        for key in (LOSS, self.accuracy_name, UP, DOWN):
            if key is not None and key in metrics:
                self.values[key] = metrics[key]
        if self.accuracy_name in metrics:
            self.evaluated = self.rounds_done

    @property
    def completed(self) -> float:
        """Number of finished rounds, plus the finished share of the running round's clients."""
        return self.rounds_done + (self.clients_done / self.num_clients if self.num_clients else 0.0)

    @property
    def details(self) -> list[str]:
        """The metrics to show, each as text with its name."""
        names = [key for key in (LOSS, self.accuracy_name) if key in self.values]
        texts = [f"{key} {float(self.values[key]):.4g}" for key in names if key is not None]
        if self.accuracy_name in self.values and self.evaluated < self.rounds_done:  # not every round is evaluated
            texts[-1] += f" (round {self.evaluated})"
        sent = [(name, key) for name, key in (("up", UP), ("down", DOWN)) if key in self.values]
        return texts + [f"{name} {format_bytes(float(self.values[key]))}" for name, key in sent]


class _Lines:
    """Prints a line of text per drawing, for files and terminals that cannot move the cursor."""

    draws_clients = False

    def __init__(self, stream: TextIO, progress: _Progress) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._drawn_round = progress.rounds_done

    def draw(self, progress: _Progress) -> None:
        # `stop` draws once more: no second line for the same round.
        if progress.rounds_done == self._drawn_round:
            return
        self._drawn_round = progress.rounds_done
        elapsed = time.monotonic() - self._started
        times = [f"{format_seconds(elapsed)} elapsed"]
        if rounds_left := progress.max_rounds - progress.rounds_done:
            # Of the rounds of this process only: those before a checkpoint took their time in another one.
            per_round = elapsed / (progress.rounds_done - progress.first_round + 1)
            times.append(f"{format_seconds(per_round * rounds_left)} left")
        self.message(" | ".join([f"round {progress.rounds_done}/{progress.max_rounds}", *progress.details, *times]))

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class _Bar:
    """Draws a progress bar of rich's, with a line of metrics below it."""

    draws_clients = True

    def __init__(self, stream: TextIO, progress: _Progress) -> None:
        from rich import progress as rich
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        self._console = console_of(stream, is_live=True)
        self._bar = rich.Progress(
            rich.TextColumn("round {task.fields[round]}/{task.total}"),
            rich.BarColumn(bar_width=None),
            rich.TimeElapsedColumn(),
            rich.TextColumn("elapsed,"),
            rich.TimeRemainingColumn(),
            rich.TextColumn("left"),
            # The time left is estimated from the last thousand drawings. The default, 30 s, may be less than a round.
            speed_estimate_period=math.inf,
            get_time=time.monotonic,
            expand=True,
        )
        self._rounds = self._bar.add_task(
            "", total=progress.max_rounds, completed=progress.rounds_done, round=progress.round
        )
        self._details = Text(no_wrap=True, overflow="crop")
        # Not `rich.Progress.start`, whose own live display has no place for the line of metrics.
        self._live = Live(Group(self._bar, self._details), console=self._console, auto_refresh=False)
        self._live.start()
        self.draw(progress)

    def draw(self, progress: _Progress) -> None:
        clients = [f"clients {progress.clients_done}/{progress.num_clients}"] if progress.num_clients else []
        self._details.plain = " | ".join(clients + progress.details)
        self._bar.update(self._rounds, completed=progress.completed, round=progress.round)
        self._live.refresh()

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


def can_draw(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def console_of(stream: TextIO, is_live: bool) -> Console:
    """Make rich's console for a stream: a terminal that can be drawn on, or a file."""
    from rich.console import Console

    # `force_terminal` is given because otherwise the variable `FORCE_COLOR` would put control characters into files.
    width = None if is_live else _FILE_WIDTH
    return Console(file=stream, force_terminal=is_live, force_jupyter=False, highlight=False, width=width)
