"""What a LightningModule, Lightning's own callbacks and a user of a finished run may ask of their trainer."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch.loggers import Logger
from torch import Tensor

from lfl.aggregation import Server
from lfl.client.layout import ParameterLayout
from lfl.comm import Ledger
from lfl.data.base import FederatedData
from lfl.engine import LocalEngine
from lfl.reporting.summary import RunSummary
from lfl.run import Run
from lfl.storage.client_store import ClientStore


class LightningFacade:
    """The part of ``lightning.Trainer``'s attributes that has a meaning here, and the parts of the run.

    To a module, a round is an epoch.
    """

    fabric: Fabric
    loggers: list[Logger]
    max_rounds: int
    _run: Run | None = None

    # -- the run ------------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The present run, or the last one.

        Raises:
            RuntimeError: there was none.
        """
        if self._run is None:
            raise RuntimeError("There is no run yet: call `fit` first.")
        return self._run

    @property
    def server(self) -> Server:
        """The run's server: x [D] is ``server.vector``."""
        return self.run.server

    @property
    def store(self) -> ClientStore:
        """What the run's clients keep."""
        return self.run.store

    @property
    def ledger(self) -> Ledger:
        """What has crossed the wire."""
        return self.run.ledger

    @property
    def engine(self) -> LocalEngine:
        """What trains the run's clients."""
        return self.run.engine

    @property
    def summary(self) -> RunSummary:
        """Best and last values of the run's metrics."""
        return self.run.summary

    @property
    def data(self) -> FederatedData:
        """The run's data."""
        return self.run.data

    @property
    def layout(self) -> ParameterLayout:
        """Where each parameter lies in a vector [D]."""
        return self.run.layout

    @property
    def num_clients(self) -> int:
        """Number of clients in the federation (N)."""
        return self.run.num_clients

    def server_state_dict(self) -> dict[str, Tensor]:
        """The module's state dict with the server's parameters and buffers."""
        return self.run.server_state_dict()

    @property
    def current_round(self) -> int:
        """Rounds completed."""
        return self._run.progress.round if self._run is not None else 0

    # -- lightning.Trainer --------------------------------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after the present round; may be set."""
        return self._run is not None and self._run.stop_request.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.run.stop_request.should_stop = value

    @property
    def device(self) -> torch.device:
        """This process's device."""
        return self.fabric.device

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes files."""
        return bool(self.fabric.is_global_zero)

    @property
    def global_rank(self) -> int:
        """Number of this process."""
        return self.fabric.global_rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.fabric.world_size

    @property
    def strategy(self) -> Any:
        """Fabric's strategy."""
        return self.fabric.strategy

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self.loggers[0] if self.loggers else None

    @property
    def current_epoch(self) -> int:
        """Rounds completed: to a LightningModule a round is an epoch."""
        return self.current_round

    @property
    def global_step(self) -> int:
        """Rounds completed: the only axis there is."""
        return self.current_round

    @property
    def max_epochs(self) -> int:
        """``max_rounds``, under the name that a LightningModule knows."""
        return self.max_rounds

    @property
    def progress_bar_callback(self) -> None:
        """For ``LightningModule.print``."""
        return
