"""FedSub: subspace FedAvg with dual variables that live in the subspace; SSF's rival in its paper.

The update is that of the authors' public code (github.com/JimmyAwoe/FedSub) for orthonormal bases.
"""

from typing import Literal

import torch
from jsonargparse import lazy_instance
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import fresh_default
from lfl.callback import FederatedCallback, Gradient, refuse_lossy_codecs
from lfl.client.layout import ParameterLayout
from lfl.client.step import LocalStep
from lfl.federation import Federation
from lfl.round import Cohort, Round
from lfl.subspace import Basis, LayerwiseSubspace, Subspace
from lfl.subspace.refresh import RefreshedBasis

_DUAL, _CLOCK, _LAST = "fedsub/dual", "fedsub/clock", "fedsub/last"


class FedSub(FederatedCallback):
    """Local steps ``z <- z - eta (P g(x + P^T z) + lambda_i / (K eta))``; then ``lambda_i += z_i - zbar``.

    ``lambda_i`` [R] is in movement units. On a refresh it is carried over, ``lambda <- P_new P_old^T lambda``, for
    every refresh a client missed when it is next seen. With a new learning rate it is rescaled by the ratio of the
    rates. Use the uniform aggregator.

    Args:
        subspace: how a basis is drawn.
        refresh_every: rounds between draws.
        variant: ``public`` is the authors' code: only the participants of a round change their dual. ``stale`` lets all
            N clients do, every round, the absent ones with the z_i of their last participation, whatever its basis was
            (zero before the first): a guess at what SSF's paper ran, where FedSub diverges. An absent client adds the
            same z_i again and again, which amplifies differences between duals. It costs O(N) a round, and a second R
            numbers of state per client.
    """

    whole_model = True

    def __init__(
        self,
        subspace: Subspace = lazy_instance(LayerwiseSubspace, rank=0.2),
        refresh_every: PositiveInt = 5,
        variant: Literal["public", "stale"] = "public",
    ) -> None:
        self.subspace = fresh_default(subspace)
        self.refresh_every = refresh_every
        self.variant = variant

    @override
    def check(self, layout: ParameterLayout) -> None:
        self.subspace.check(layout)

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        refuse_lossy_codecs("FedSub", stack)

    @override
    def on_run_start(self, federation: Federation) -> None:
        layout, store = federation.layout, federation.store
        self._federation = federation
        self._store = store
        rank = self.subspace.check(layout)
        store.declare(_DUAL, rank, layout.dtype)
        if self.variant == "stale":
            store.declare(_LAST, rank, layout.dtype)
        # When a dual was written: the number of refreshes before, and the learning rate.
        store.declare(_CLOCK, 2, torch.float64)
        self._bases = RefreshedBasis(self.subspace, self.refresh_every, layout, federation.seed, federation.device)

    @override
    def coordinates(self, round: Round) -> Basis:
        return self._bases.at(round.number)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        cohort.rows["dual"] = self._duals(cohort.ids, cohort.round.number)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        # The scale of all the steps a client is going to take; known before because it depends on the settings only.
        correction = cohort.rows["dual"] / cohort.step_scale()

        def corrected(coordinates: Tensor, step: LocalStep) -> Tensor:
            return gradient(coordinates, step).add_(correction[: len(coordinates)])

        return corrected

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        """``lambda_i + z_i``; what is left, ``- zbar``, is known when all clients have reported."""
        self._write(cohort.ids, cohort.rows["dual"] + cohort.values, cohort.round.number)
        if self.variant == "stale":
            self._store.scatter(_LAST, cohort.ids, cohort.values)

    @override
    def on_server_step(self, round: Round) -> None:
        store = self._store
        mean = round.update_coordinates  # zbar
        if mean is None:
            return
        for ids in round.reported:
            store.scatter(_DUAL, ids, store.gather(_DUAL, ids) - mean)
        if self.variant == "stale":
            ids = self._absent(round)
            moved = store.gather(_LAST, ids) - mean
            self._write(ids, self._duals(ids, round.number) + moved, round.number)

    def _duals(self, ids: Tensor, round_number: int) -> Tensor:
        """Lambda of some clients [C, R], in the basis and for the learning rate of a round."""
        store = self._store
        dual: Tensor = store.gather(_DUAL, ids)
        clock = store.gather(_CLOCK, ids)
        self._carry(dual, clock[:, 0].long(), self._bases.period(round_number))
        rate = self._federation.rates.lr
        ratio = torch.where(clock[:, 1] > 0, rate / clock[:, 1].clamp(min=torch.finfo(clock.dtype).tiny), 1.0)
        dual *= ratio[:, None].to(dual.dtype)
        return dual

    def _write(self, ids: Tensor, dual: Tensor, round_number: int) -> None:
        self._store.scatter(_DUAL, ids, dual)
        clock = [float(self._bases.period(round_number)), self._federation.rates.lr]
        self._store.scatter(_CLOCK, ids, torch.tensor(clock, dtype=torch.float64).expand(len(ids), 2))

    def _absent(self, round: Round) -> Tensor:
        """Ids of this process's clients that have data and are not in the round's aggregate."""
        absent = self._federation.data.client_sizes > 0
        absent &= self._federation.processes.at_home(torch.arange(len(absent)))
        for ids in round.reported:
            absent[ids] = False
        return absent.nonzero().squeeze(1)

    def _carry(self, dual: Tensor, since: Tensor, period: int) -> None:
        """Move rows of ``dual`` [C, R], in place, through the refreshes since each was written."""
        stale = dual.any(dim=1).cpu()
        for old in range(int(since[stale].min()) if stale.any() else period, period):
            behind = (stale & (since.cpu() <= old)).to(dual.device)
            lifted = self._bases.of_period(old).lift(dual[behind])
            dual[behind] = self._bases.of_period(old + 1).project(lifted)
