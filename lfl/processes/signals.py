"""Signals: those that stop a run cleanly, with a checkpoint, and those that end a process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class StoppedBySignal(KeyboardInterrupt):
    """SIGINT stopped a run at the end of a round, and the checkpoint was written."""


def raise_signal_again(number: int) -> None:
    """Stop the calling script too if signal ``number`` stopped its run; 0 if none did.

    Otherwise the script would continue with a model that is only half trained.

    Raises:
        StoppedBySignal: the signal was SIGINT.
        SystemExit: the signal was SIGTERM; the exit code is 143.
    """
    if number == signal.SIGINT:
        raise StoppedBySignal
    if number:
        sys.exit(128 + number)  # the shell's convention for a process that a signal ended


def how_it_ended(code: int) -> str:
    """Put the exit code of a process into words; it is negative for the number of a signal."""
    if code >= 0:
        return f"ended with exit code {code}: see its own message"
    name = next((f" ({known.name})" for known in signal.Signals if known == -code), "")  # some have no name
    return f"was killed by signal {-code}{name}"


@dataclass
class StopRequest:
    """Whether a run should stop after the current round.

    Attributes:
        should_stop: set to True by a signal, a callback or the module to stop the run.
        signal: number of the signal that asked for it; 0 if none did.
    """

    should_stop: bool = False
    signal: int = 0


class GracefulSignals:
    """Context in which SIGINT and SIGTERM stop a run after the current round, and a second signal stops it at once.

    Args:
        request: set when the first signal arrives.
        tell: prints one line to the user.
    """

    def __init__(self, request: StopRequest, tell: Callable[[str], None]) -> None:
        self._request = request
        self._tell = tell
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        for name in ("SIGINT", "SIGTERM"):
            number = getattr(signal, name, None)
            if number is None:  # a system without this signal
                continue
            try:
                self._previous[number] = signal.signal(number, self._stop)
            except ValueError:  # outside the main thread Python allows no handlers: signals are then the caller's
                return

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: Any) -> None:
        del frame
        # The second signal: a round may take hours, and the user does not want to wait for its end.
        if self._request.signal:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._request.signal = number
        self._request.should_stop = True
        self._tell("Stopping after this round, with a checkpoint; once more to stop at once.")
