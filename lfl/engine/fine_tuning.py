"""Local training outside of the run, for evaluations that fine-tune clients' models first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lfl.aggregation import Server
from lfl.client.rates import LearningRates
from lfl.client.surroundings import Surroundings
from lfl.client.work import LocalPhase, LocalWork
from lfl.engine.paths import Path
from lfl.engine.training import LocalTraining
from lfl.generators import HostGenerators
from lfl.randomness import derive_seed
from lfl.round import Round, RoundSums


class EngineFineTuner:
    """Trains clients' models in place, beside the run, which does not change, nor do its random numbers.

    Args:
        training: the run's; steps are computed in the same way as in the run, on a copy of the module.
        phases: the local work to do.
        server: has x and the model's buffers.
        rates: learning rates of the round.
        buffers_of: the buffers [C, B] that clients [C] start from.
    """

    def __init__(
        self,
        training: LocalTraining,
        phases: Sequence[LocalPhase],
        server: Server,
        rates: LearningRates,
        buffers_of: Callable[[Tensor], Tensor],
    ) -> None:
        self._training, self._generation = training, training.generation
        self._phases = phases
        self._path: Path | None = None  # of the last one; none yet
        self._server = server
        self._rates = rates
        self._buffers_of = buffers_of

    def __call__(self, round: Round, ids: Tensor, params: Tensor) -> Tensor:
        """Train the rows ``params`` [C, D] of those clients ``ids`` [C] (ascending) that have training examples.

        Returns:
            the buffers of all afterwards [C, B].
        """
        training = self._begin()
        buffers = self._buffers_of(ids).clone()
        # Some step is always compared: next to all that a fine-tuning takes it costs nothing.
        training.start_round(round.number, is_watched=True)
        engine = training.engine
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
        # Steps may draw from the global generators, which the sequential engine seeds for every client, and change what
        # lies outside of the module; all is put back afterwards.
        module = engine.model.module
        with HostGenerators(*module.modules()).kept(), Surroundings(module).kept():
            for cohort in training.cohorts(aside, self._server.buffers, self._server.counters):
                # `ids` ascend, so that a search finds each trained client's row.
                rows = torch.searchsorted(ids, cohort.ids).to(params.device)
                cohort.values.copy_(params[rows])
                cohort.buffers = buffers[rows]
                # False if nothing was kept: `cohorts` yields these clients again.
                if training.train(cohort, self._rates):
                    params[rows] = cohort.values
                    buffers[rows] = cohort.buffers
        self._path = training.path
        return buffers

    def _begin(self) -> LocalTraining:
        """A training like the run's of the moment, on a copy of the module as it is now.

        A new copy each time, whose steps are recorded anew: a module may hold its state anywhere.
        """
        if self._generation != self._training.generation:
            self._path, self._generation = None, self._training.generation
        engine = self._training.engine
        work = LocalWork(self._phases, sampling=engine.work.sampling)
        return self._training.aside(work, derive_seed(engine.seed, "fine-tune"), " in fine-tuning", self._path)
