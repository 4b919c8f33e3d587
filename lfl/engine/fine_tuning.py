"""Local training outside of the run, for evaluations that fine-tune clients' models first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lfl.aggregation import Server
from lfl.client.rates import LearningRates
from lfl.client.work import LocalPhase, LocalWork
from lfl.engine.base import LocalEngine
from lfl.engine.cohorts import cohorts_of
from lfl.engine.training import LocalTraining
from lfl.generators import HostGenerators
from lfl.randomness import derive_seed
from lfl.round import Round, RoundSums


class EngineFineTuner:
    """Trains clients' models in place, with an engine of its own; the run and its random numbers do not change.

    Args:
        training: the run's; steps are computed in the same way as in the run, on a copy of the module.
        phases: the local work to do.
        server: has x and the model's buffers.
        rates: learning rates of the round.
    """

    def __init__(
        self,
        training: LocalTraining,
        phases: Sequence[LocalPhase],
        server: Server,
        rates: LearningRates,
    ) -> None:
        self._training = training
        self._phases = phases
        self._engine, self._generation = training.engine, 0  # none yet
        self._server = server
        self._rates = rates

    def __call__(self, round: Round, ids: Tensor, params: Tensor) -> None:
        """Train the rows ``params`` [C, D] of those clients ``ids`` [C] (ascending) that have training examples."""
        engine = self._current_engine()
        trained = ids[engine.data.client_sizes[ids] > 0]
        server = self._server.vector.clone()
        # A round of its own: the sums, logs and reports of the run's round must not see this training. Clients train
        # whole models, so without the basis of the round.
        aside = replace(
            round, clients=trained, server=server, local_clients=trained, invited=trained, sent_in=None, basis=None
        )
        aside.totals = RoundSums()
        aside.reported = []
        aside.metrics = {}
        # The sequential engine seeds the global generators for every client; put them back afterwards.
        with HostGenerators(*engine.model.module.modules()).kept():
            for cohort in cohorts_of(lambda: engine, aside, self._server.buffers, self._server.counters):
                # `ids` ascend, so that a search finds each trained client's row.
                rows = torch.searchsorted(ids, cohort.ids).to(params.device)
                cohort.values.copy_(params[rows])
                # False if out of memory: `cohorts` yields these clients again, fewer at a time.
                if engine.train(cohort, self._rates):
                    params[rows] = cohort.values

    def _current_engine(self) -> LocalEngine:
        """An engine like the run's of the moment."""
        if self._generation != self._training.generation:
            engine = self._training.engine
            work = LocalWork(self._phases, sampling=engine.work.sampling)
            self._engine = engine.alike(work, [], derive_seed(engine.seed, "fine-tune"))
            self._generation = self._training.generation
        return self._engine
