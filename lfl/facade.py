"""The trainer's properties for LightningModules, for Lightning's own classes, and for users of a finished run."""

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
from lfl.settings import Settings
from lfl.storage.client_store import ClientStore


class LightningFacade:
    """Those attributes of ``lightning.Trainer`` that have a meaning here, and the parts of the run.

    To a LightningModule, a round is an epoch.
    """

    fabric: Fabric
    loggers: list[Logger]
    _settings: Settings
    _run: Run | None = None

    # -- the run ------------------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The current run, or the last one.

        Raises:
            RuntimeError: there was no run yet.
        """
        if self._run is None:
            raise RuntimeError("There is no run: `fit` makes one; `validate`, `test` and `predict` do not.")
        return self._run

    @property
    def server(self) -> Server:
        """The run's server; the model x [D] is ``server.vector``."""
        return self.run.server

    @property
    def store(self) -> ClientStore:
        """The client store of the run: the rows that clients keep between rounds."""
        return self.run.store

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run: how many bits were sent, up and down."""
        return self.run.ledger

    @property
    def engine(self) -> LocalEngine:
        """The engine of the run, which trains the clients."""
        return self.run.engine

    @property
    def summary(self) -> RunSummary:
        """The best and last values of the run's metrics."""
        return self.run.summary

    @property
    def data(self) -> FederatedData:
        """The data module of the run."""
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

    def evaluate_clients(self, ids: Tensor, params: Tensor) -> list[dict[str, float]]:
        """Validation metrics of clients ``ids`` [C], each with its own parameters [C, D] on its own test examples."""
        return self.run.evaluate_clients(ids, params)

    @property
    def current_round(self) -> int:
        """Number of completed rounds."""
        return self._run.progress.round if self._run is not None else 0

    # -- lightning.Trainer --------------------------------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether the run ends after the current round; may be set."""
        return self._run is not None and self._run.stop_request.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.run.stop_request.should_stop = value

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.fabric.device

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process that writes files (rank 0)."""
        return bool(self.fabric.is_global_zero)

    @property
    def global_rank(self) -> int:
        """Rank of this process, from 0."""
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
        """Number of completed rounds, since to a LightningModule a round is an epoch."""
        return self.current_round

    @property
    def global_step(self) -> int:
        """Number of completed rounds, since metrics are logged per round."""
        return self.current_round

    @property
    def max_rounds(self) -> int:
        """The last round; settings are made by the constructor and cannot be changed."""
        return self._settings.max_rounds

    @property
    def seed(self) -> int:
        """The seed of all draws of the training."""
        return self._settings.seed

    @property
    def max_epochs(self) -> int:
        """``max_rounds``, under the name that a LightningModule knows."""
        return self.max_rounds

    @property
    def progress_bar_callback(self) -> None:
        """Always None; ``LightningModule.print`` asks for it."""
        return
