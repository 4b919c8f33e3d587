"""What the user sees of a run: the progress while it lasts, and a table at its end."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from lfl.reporting.formats import DOWN, LOSS, UP, format_bytes, format_seconds

# Rich is imported where something is drawn: a run on a cluster and `lfl --help` never need it.
if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_DRAW_SECONDS = 0.2
_LINE_SECONDS = 2.0
_WINDOW = 50
_FILE_WIDTH = 120


class ProgressDisplay:
    """The progress of a run: a live bar on a terminal, plain lines elsewhere.

    Between two drawings a call only stores its arguments and looks at the clock. There is no drawing thread: processes
    that are forked meanwhile (data loader workers) cannot inherit a lock that nobody opens.

    Rounds are counted from 1 to ``max_rounds``.

    Args:
        enabled: False shows nothing at all.
        stream: Where to write; standard output as it is at `start` by default.
        live: Whether to draw a bar; by default if ``stream`` is a terminal that can move its cursor.
    """

    def __init__(self, enabled: bool = True, stream: TextIO | None = None, live: bool | None = None) -> None:
        self.enabled = enabled
        self._stream = stream
        self._live = live
        self._view: _Bar | _Lines | None = None
        self._progress = _Progress(1, 0, 0.0)
        self._due = math.inf  # when the next drawing is due, on the monotonic clock

    def start(self, first_round: int, max_rounds: int) -> None:
        """Begin with the first round to come: 1, or the one after a checkpoint's."""
        if not self.enabled:
            return
        stream = self._output()
        self._due = time.monotonic()
        self._progress = _Progress(first_round, max_rounds, self._due)
        self._view = _Bar(stream, self._progress) if self._is_live(stream) else _Lines(stream)

    def round_started(self, round: int, num_clients: int) -> None:
        """A round begins in which ``num_clients`` clients take part."""
        progress = self._progress
        progress.round = round
        progress.num_clients = num_clients
        progress.clients_done = 0

    def clients_done(self, count: int) -> None:
        """``count`` more clients of the round have finished."""
        self._progress.clients_done += count
        if self._view is not None and self._view.draws_clients:
            self._draw_if_due()

    def round_done(self, round: int, metrics: Mapping[str, float]) -> None:
        """A round has ended with these metrics; those that are missing keep the value they had."""
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

    def show(self, renderable: RenderableType) -> None:
        """Print something of rich's, such as the table of `RunSummary.render`, after `stop`."""
        if self.enabled:
            stream = self._output()
            _console(stream, self._is_live(stream)).print(renderable)

    def stop(self) -> None:
        """Draw the last state and give the terminal back; more than once does no harm."""
        view, self._view = self._view, None
        if view is not None:
            self._progress.tick(time.monotonic())
            view.draw(self._progress)
            view.close()

    def _draw_if_due(self) -> None:
        now = time.monotonic()
        if now < self._due or self._view is None:
            return
        self._progress.tick(now)
        self._view.draw(self._progress)
        self._progress.drawn_round = self._progress.rounds_done
        # Counted from the end of the drawing: on a slow terminal the next one would be due at once.
        self._due = time.monotonic() + (_DRAW_SECONDS if self._view.draws_clients else _LINE_SECONDS)

    def _output(self) -> TextIO:
        return self._stream or sys.stdout

    def _is_live(self, stream: TextIO) -> bool:
        return _can_draw(stream) if self._live is None else self._live


class _Progress:
    """Where a run is: what the calls store and the views read."""

    def __init__(self, first_round: int, max_rounds: int, now: float) -> None:
        self.round = first_round
        self.rounds_done = self.drawn_round = first_round - 1
        self.max_rounds = max_rounds
        self.num_clients = 0
        self.clients_done = 0
        self.accuracy_name: str | None = None
        self.values: dict[str, float] = {}
        self.started = self.now = now
        # Times at which the number of finished rounds was seen to have grown.
        self._window = deque([(now, self.rounds_done)], maxlen=_WINDOW)

    def take(self, metrics: Mapping[str, float]) -> None:
        """Keep what is shown; a value stays as it is, perhaps on a device, until it is drawn."""
        if self.accuracy_name is None:
            names = [key for key in metrics if key.startswith("val") and "acc" in key]
            self.accuracy_name = "val_acc" if "val_acc" in names else next(iter(names), None)
        for key in (LOSS, self.accuracy_name, UP, DOWN):
            if key is not None and key in metrics:
                self.values[key] = metrics[key]

    def tick(self, now: float) -> None:
        """See what time it is."""
        self.now = now
        if self.rounds_done != self._window[-1][1]:
            self._window.append((now, self.rounds_done))

    @property
    def completed(self) -> float:
        """Finished rounds, the running one by its share of clients."""
        return self.rounds_done + (self.clients_done / self.num_clients if self.num_clients else 0.0)

    @property
    def times(self) -> list[str]:
        """Time used and time left, the latter by the mean of the last rounds."""
        texts = [f"{format_seconds(self.now - self.started)} elapsed"]
        (since, first), (until, last) = self._window[0], self._window[-1]
        if last > first and self.completed < self.max_rounds:
            left = (until - since) / (last - first) * (self.max_rounds - self.completed)
            texts.append(f"{format_seconds(left)} left")
        return texts

    @property
    def details(self) -> list[str]:
        """The metrics, each with its name."""
        names = [key for key in (LOSS, self.accuracy_name) if key in self.values]
        texts = [f"{key} {float(self.values[key]):.4g}" for key in names if key is not None]
        sent = [(name, key) for name, key in (("up", UP), ("down", DOWN)) if key in self.values]
        return texts + [f"{name} {format_bytes(float(self.values[key]))}" for name, key in sent]


class _Lines:
    """One line of plain text a drawing, for files and terminals that cannot draw."""

    draws_clients = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, progress: _Progress) -> None:
        if progress.drawn_round != progress.rounds_done:
            parts = [f"round {progress.rounds_done}/{progress.max_rounds}", *progress.details, *progress.times]
            self.message(" | ".join(parts))

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class _Bar:
    """A bar with a line of details below."""

    draws_clients = True

    def __init__(self, stream: TextIO, progress: _Progress) -> None:
        from rich.live import Live

        self._console = _console(stream, is_live=True)
        self._live = Live(self._render(progress), console=self._console, auto_refresh=False)
        self._live.start(refresh=True)

    def draw(self, progress: _Progress) -> None:
        self._live.update(self._render(progress), refresh=True)

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _render(self, progress: _Progress) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(
            Text(f"round {progress.round}/{progress.max_rounds}"),
            ProgressBar(total=max(progress.max_rounds, 1), completed=progress.completed),
            Text(", ".join(progress.times)),
        )
        clients = [f"clients {progress.clients_done}/{progress.num_clients}"] if progress.num_clients else []
        return Group(bar, Text(" | ".join(clients + progress.details), no_wrap=True, overflow="crop"))


def _can_draw(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def _console(stream: TextIO, is_live: bool) -> Console:
    from rich.console import Console

    # Given explicitly, for `FORCE_COLOR` would put control characters into files.
    width = None if is_live else _FILE_WIDTH
    return Console(file=stream, force_terminal=is_live, force_jupyter=False, highlight=False, width=width)
