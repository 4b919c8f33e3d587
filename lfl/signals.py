"""Ending a run in good order when the system or the user asks for it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lfl.trainer import FederatedTrainer


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
