"""Decides when checkpoints are written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lfl.reporting.formats import direction_of


class Checkpointing:
    """Decides after which rounds checkpoints are written.

    ``last.ckpt`` is written every ``every_n_rounds`` rounds and at the end; ``best.ckpt`` when ``monitor`` improves.

    Args:
        every_n_rounds: number of rounds between checkpoints.
        monitor: name of a logged metric, such as ``val_acc``; none for no ``best.ckpt``.
        mode: whether ``monitor`` should be large or small; auto decides by the Metric object that is logged, or by its
            name (loss and error small, acc large).
        keep_all: also keep a checkpoint ``round_000010.ckpt`` for each ``last.ckpt``.
    """

    def __init__(
        self,
        every_n_rounds: PositiveInt = 10,
        monitor: str | None = None,
        mode: Literal["auto", "max", "min"] = "auto",
        keep_all: bool = False,
    ) -> None:
        if monitor is not None and mode == "auto" and not direction_of(monitor):
            raise ValueError(f"The name `monitor={monitor}` does not say what is better: set `mode` to max or min.")
        self.every_n_rounds = every_n_rounds
        self.monitor = monitor
        self.mode = mode
        self.keep_all = keep_all
        self.best: float | None = None  # the best value of `monitor` so far
        self.saved_round = 0  # the round of the newest `last.ckpt`

    def start(self) -> None:
        """Forget the last run, since one object may be used for several."""
        self.best = None
        self.saved_round = 0

    def due_after(
        self,
        round_number: int,
        metrics: dict[str, float],
        is_final: bool,
        directions: Mapping[str, int] | None = None,
    ) -> list[str]:
        """Names of the checkpoint files to write after a round, in order.

        Args:
            round_number: the round.
            metrics: what it logged.
            is_final: whether it is the last one.
            directions: whether metrics should be large or small, where that is known otherwise than by their names.
        """
        names = []
        if self._improves(metrics, directions):
            self.best = metrics[str(self.monitor)]
            names.append("best.ckpt")
        if is_final or round_number % self.every_n_rounds == 0:
            self.saved_round = round_number
            names.append("last.ckpt")
            if self.keep_all:
                names.append(f"round_{round_number:06d}.ckpt")
        return names

    def due_at_end(self, round_number: int) -> list[str]:
        """Names of the checkpoint files to write when the run ends after ``round_number``, possibly before its last.

        ``due_after`` does not know that a signal will stop the run after this round.
        """
        if self.monitor is not None and self.best is None and round_number:
            rank_zero_warn(f"No round logged `checkpoint.monitor={self.monitor}`: there is no best checkpoint.")
        if round_number <= self.saved_round:
            return []
        self.saved_round = round_number
        return ["last.ckpt"]

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint: the best value so far."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.best = state["best"]

    def _improves(self, metrics: dict[str, float], directions: Mapping[str, int] | None) -> bool:
        if self.monitor is None:
            return False
        # A round without evaluation does not log it; NaN is never better than a number.
        value = metrics.get(self.monitor, math.nan)
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        is_larger_better = direction_of(self.monitor, directions) > 0 if self.mode == "auto" else self.mode == "max"
        return value > self.best if is_larger_better else value < self.best
