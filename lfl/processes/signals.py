"""Ending a run in good order when the system or the user asks for it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class StoppedBySignal(KeyboardInterrupt):
    """SIGINT has ended a run, in good order."""


def raise_signal_again(number: int) -> None:
    """Stop the calling script too, where signal ``number`` stopped its run; 0 for none.

    It must not go on with a half-trained model as if nothing had happened.

    Raises:
        StoppedBySignal: SIGINT.
        SystemExit: SIGTERM, with code 143.
    """
    if number == signal.SIGINT:
        raise StoppedBySignal
    if number:
        sys.exit(128 + number)


@dataclass
class StopRequest:
    """Whether a run is to end after the present round.

    Attributes:
        should_stop: set by anybody who wants it to end.
        signal: the number of the signal that asked for it; 0 for none.
    """

    should_stop: bool = False
    signal: int = 0


class GracefulSignals:
    """Lets SIGINT and SIGTERM end a run at the end of the round, with a checkpoint; a second one ends it at once.

    Args:
        request: where the wish is noted.
        tell: prints a line for people.
    """

    def __init__(self, request: StopRequest, tell: Callable[[str], None]) -> None:
        self._request, self._tell = request, tell
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._stop)
            except ValueError:  # not in the main thread: leave signals to whoever runs us
                return

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: Any) -> None:
        del frame
        if self._request.signal:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._request.signal, self._request.should_stop = number, True
        self._tell("Stopping after this round, with a checkpoint; once more to stop at once.")
