"""Local training on the side, for evaluations that fine-tune clients' models first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lfl.aggregation import Server
from lfl.callback import FederatedCallback
from lfl.client.rates import LearningRates
from lfl.client.work import LocalPhase, LocalWork
from lfl.engine.base import LocalEngine
from lfl.randomness import derive_seed
from lfl.round import Round, RoundSums


class EngineFineTuner:
    """Trains models of clients in place, with an engine like the run's; neither the run nor its random numbers notice.

    Args:
        engine: the run's.
        phases: the work to do.
        callbacks: those that personalize models.
        server: for x and the model's buffers.
        rates: learning rates of the round.
    """

    def __init__(
        self,
        engine: LocalEngine,
        phases: Sequence[LocalPhase],
        callbacks: list[FederatedCallback],
        server: Server,
        rates: LearningRates,
    ) -> None:
        work = LocalWork(phases, sampling=engine.work.sampling)
        self._engine = engine.alike(work, callbacks, derive_seed(engine.seed, "fine-tune"))
        self._server = server
        self._rates = rates

    def __call__(self, round: Round, ids: Tensor, params: Tensor) -> None:
        """Train the rows ``params`` [C, D] of those clients ``ids`` [C] (ascending) that have training examples."""
        trained = ids[self._engine.data.client_sizes[ids] > 0]
        server = self._server.vector.clone()
        aside = replace(round, clients=trained, server=server, local_clients=trained, invited=trained, basis=None)
        aside.totals, aside.reported, aside.metrics = RoundSums(), [], {}
        with torch.random.fork_rng(devices=[]):
            for cohort in self._engine.cohorts(aside, self._server.buffers, self._server.counters):
                if not self._engine.train(cohort, self._rates):
                    continue  # the device is too small for so many: they come again, fewer at a time
                params[torch.searchsorted(ids, cohort.ids).to(params.device)] = cohort.values
