"""Ending a run in good order when the system or the user asks for it."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lfl.trainer import FederatedTrainer


class StoppedBySignal(KeyboardInterrupt):
    """SIGINT came while a run was trained, which has ended in good order."""


def hand_on(number: int) -> None:
    """End what called a run that signal ``number`` has ended; 0 for none.

    A script must not go on with a model that is trained by half, as if nothing had happened.

    Raises:
        StoppedBySignal: SIGINT.
        SystemExit: SIGTERM, with code 143.
    """
    if number == signal.SIGINT:
        raise StoppedBySignal
    if number:
        sys.exit(128 + number)


class GracefulSignals:
    """SIGINT and SIGTERM end a run at the end of the round, with a checkpoint; a second one ends it at once."""

    def __init__(self, trainer: FederatedTrainer) -> None:
        self._trainer = trainer
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
        trainer = self._trainer
        if trainer.interrupted:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        trainer.interrupted, trainer.should_stop = number, True
        trainer.display.message("Stopping after this round, with a checkpoint; once more to stop at once.")
