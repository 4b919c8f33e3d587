"""When checkpoints are written."""

from __future__ import annotations

import math
from typing import Any, Literal

from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.rank_zero import rank_zero_warn

from lfl.reporting.formats import direction_of


class Checkpointing:
    """Says at which rounds' ends checkpoints are written.

    ``last.ckpt`` is written every ``every_n_rounds`` rounds and at the end; ``best.ckpt`` when ``monitor`` improves.

    Args:
        every_n_rounds: distance of checkpoints.
        monitor: a logged metric, such as ``val_acc``; none for no best checkpoint.
        mode: whether ``monitor`` should be large or small; auto goes by its name (loss and error small, acc large).
        keep_all: also keep ``round_000010.ckpt`` and so on.
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
        self.every_n_rounds, self.monitor, self.mode, self.keep_all = every_n_rounds, monitor, mode, keep_all
        self.best: float | None = None
        self.saved_round = 0

    def start(self) -> None:
        """Begin a run: one object may serve several."""
        self.best, self.saved_round = None, 0

    def due_after(self, round_number: int, metrics: dict[str, float], is_final: bool) -> list[str]:
        """Names of the checkpoint files to write after a round, in order."""
        names = []
        if self._improves(metrics):
            self.best = metrics[str(self.monitor)]
            names.append("best.ckpt")
        if is_final or round_number % self.every_n_rounds == 0:
            self.saved_round = round_number
            names.append("last.ckpt")
            if self.keep_all:
                names.append(f"round_{round_number:06d}.ckpt")
        return names

    def due_at_end(self, round_number: int) -> list[str]:
        """Likewise at the end of a run: a signal may come when the last round has already decided."""
        if self.monitor is not None and self.best is None and round_number:
            rank_zero_warn(f"No round logged `checkpoint.monitor={self.monitor}`: there is no best checkpoint.")
        if round_number <= self.saved_round:
            return []
        self.saved_round = round_number
        return ["last.ckpt"]

    def state_dict(self) -> dict[str, Any]:
        """The best value so far."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self.best = state["best"]

    def _improves(self, metrics: dict[str, float]) -> bool:
        if self.monitor is None:
            return False
        value = metrics.get(self.monitor, math.nan)
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        is_larger_better = direction_of(str(self.monitor)) > 0 if self.mode == "auto" else self.mode == "max"
        return value > self.best if is_larger_better else value < self.best
