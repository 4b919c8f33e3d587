"""An evaluation of the clients that a server which waits for the fastest hears from last."""

from __future__ import annotations

import math

from typing_extensions import override

from lfl.callbacks import ClientEvaluation
from lfl.federation import Federation
from lfl.system import Speeds


class SlowestClients(ClientEvaluation):
    """Runs ``validation_step`` with the own models of the slowest clients, on each one's own test examples.

    Logs what ``ClientEvaluation`` logs, as ``slowest/METRIC``. Who is slow is told by the times of round 1, which are
    those of all rounds where speeds are fixed.

    Args:
        share: of all clients, in (0, 1].
        every_n_rounds: rounds between evaluations; the last round is always evaluated.

    Raises:
        ValueError: the run has no speeds.
    """

    def __init__(self, share: float = 0.1, every_n_rounds: int = 10) -> None:
        super().__init__(every_n_rounds, name="slowest")
        self.share = share

    @override
    def on_run_start(self, federation: Federation) -> None:
        super().on_run_start(federation)
        if not isinstance(federation.system, Speeds):
            raise ValueError("SlowestClients needs a `trainer.system` that knows how fast clients are.")
        (evaluation,) = self._evaluations
        seconds = federation.system.client_seconds(evaluation.ids, None, 1, federation.seed)
        slow = seconds.argsort(descending=True, stable=True)[: math.ceil(self.share * len(seconds))]
        evaluation.ids = evaluation.ids[slow.sort().values]
