"""A callback that ends a run whose question is answered."""

from __future__ import annotations

from typing_extensions import override

from lfl.callbacks import FederatedCallback
from lfl.federation import Federation
from lfl.round import Round


class GradientNormEarlyStopping(FederatedCallback):
    """Stops when the relative norm is down to ``norm``, or when x has left the region where that means anything.

    Tukey's loss is bounded: far away it is flat, and a run that diverges ends with a small gradient too.

    Args:
        norm: of ``val_relative_gradient_norm``.
        loss: largest ``val_loss`` of a run that has not diverged.
    """

    def __init__(self, norm: float, loss: float) -> None:
        self.norm, self.loss = norm, loss

    @override
    def on_run_start(self, federation: Federation) -> None:
        self.federation = federation

    @override
    def on_round_end(self, round: Round) -> None:
        found = round.metrics.get("val_relative_gradient_norm")
        if found is not None and (float(found) <= self.norm or not float(round.metrics["val_loss"]) <= self.loss):
            self.federation.stop()
