"""The trainer's properties for users of a run: its parts."""

from __future__ import annotations

from torch import Tensor

from lfl.aggregation import Server
from lfl.client.layout import ParameterLayout
from lfl.comm import Ledger
from lfl.data.base import FederatedData
from lfl.engine import LocalEngine
from lfl.reporting.summary import RunSummary
from lfl.run import Run
from lfl.storage.client_store import ClientStore


class RunFacade:
    """The parts of the current run, or of the last one."""

    _run: Run | None = None
    _evaluated: Server | None = None  # by `validate`, `test` or `predict` since the last run

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
        """The server of the run, or of ``validate``, ``test`` or ``predict``; the model x [D] is ``server.vector``."""
        return self._evaluated if self._evaluated is not None else self.run.server

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
        """The place of each parameter in a vector [D]."""
        return self.run.layout

    @property
    def num_clients(self) -> int:
        """Number of clients in the federation (N)."""
        return self.run.num_clients

    def server_state_dict(self) -> dict[str, Tensor]:
        """The module's state dict with the server's parameters and buffers."""
        return self.run.server_state_dict()

    def evaluate_clients(self, ids: Tensor, params: Tensor) -> list[dict[str, float]]:
        """Validation metrics of clients ``ids`` [C] with parameters [C, D], or [D] for all, on their test examples."""
        return self.run.evaluate_clients(ids, params)

    @property
    def current_round(self) -> int:
        """Number of completed rounds."""
        return self._run.progress.round if self._run is not None else 0
