"""FedSub: FedAvg in a subspace, with dual variables in the same subspace; a baseline in the paper of SSF.

The update is that of the authors' public code (github.com/JimmyAwoe/FedSub) for orthonormal bases.
"""

from typing import Literal

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import fresh_default, lazy_default
from lfl.callback import FederatedCallback, Gradient, refuse_lossy_codecs
from lfl.client.layout import ParameterLayout
from lfl.client.step import LocalStep
from lfl.federation import Federation
from lfl.round import Cohort, Round
from lfl.subspace import Basis, LayerwiseSubspace, Subspace
from lfl.subspace.refresh import RefreshedBasis

_DUAL = "fedsub/dual"  # lambda_i [R]
_CLOCK = "fedsub/clock"  # the period and the learning rate for which lambda_i was written [2]
_LAST = "fedsub/last"  # z_i of the last participation [R], for `stale`


class FedSub(FederatedCallback):
    """Local steps ``z <- z - eta (P g(x + P^T z) + lambda_i / (K eta))``; then ``lambda_i += z_i - zbar``.

    ``lambda_i`` [R] has the unit of z, not of a gradient. When a new basis is drawn it is converted,
    ``lambda <- P_new P_old^T lambda``; a client that missed several draws makes up for them when it next takes part.
    With a new learning rate it is rescaled by the ratio of the rates. Stated for the mean over clients.

    Args:
        subspace: draws the bases.
        refresh_every: rounds between draws.
        variant: ``public`` is the authors' code: only the participants of a round change their dual. With ``stale`` all
            N clients do, in every round; absent ones use the z_i of their last participation, whatever its basis was
            (zero before the first). This is our guess at what SSF's paper ran, where FedSub diverges: an absent client
            adds the same z_i again and again, which amplifies differences between duals. It costs O(N) a round, and R
            more numbers of state per client.
    """

    weighting = "uniform"
    whole_model = True

    def __init__(
        self,
        subspace: Subspace = lazy_default(LayerwiseSubspace, rank=0.2),
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
        layout = federation.layout
        store = federation.store
        self._federation = federation
        self._store = store
        rank = self.subspace.check(layout)
        store.declare(_DUAL, rank, layout.dtype)
        if self.variant == "stale":
            store.declare(_LAST, rank, layout.dtype)
        # Beside each dual, what it was written under: the number of draws before, and the learning rate.
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
        # lambda_i / (K eta). The step lengths ahead are known now, as they depend on settings and not on gradients.
        correction = cohort.rows["dual"] / cohort.step_scale()

        def corrected(coordinates: Tensor, step: LocalStep) -> Tensor:
            return gradient(coordinates, step).add_(correction[: len(coordinates)])

        return corrected

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        """Write ``lambda_i + z_i``; ``on_server_step`` subtracts zbar, when all clients have reported."""
        self._write(cohort.ids, cohort.rows["dual"] + cohort.values, cohort.round.number)
        if self.variant == "stale":
            self._store.scatter(_LAST, cohort.ids, cohort.values)

    @override
    def on_server_step(self, round: Round) -> None:
        store = self._store
        mean = round.update_coordinates  # zbar
        if mean is None:
            return
        # Each process has accepted, and writes, clients of its own only.
        for ids in round.reported:
            store.scatter(_DUAL, ids, store.gather(_DUAL, ids) - mean)
        if self.variant == "stale":
            ids = self._absent(round)
            moved = store.gather(_LAST, ids) - mean
            self._write(ids, self._duals(ids, round.number) + moved, round.number)

    def _duals(self, ids: Tensor, round_number: int) -> Tensor:
        """The duals lambda_i of clients ``ids`` [C, R], in the basis and for the learning rate of a round."""
        store = self._store
        dual: Tensor = store.gather(_DUAL, ids)
        clock = store.gather(_CLOCK, ids)
        self._carry(dual, clock[:, 0].long(), self._bases.period(round_number))
        rate = self._federation.rates.lr
        # A clock of 0 was never written: the dual is zero, and needs no scale.
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
        absent[self._federation.held_out] = False
        absent &= self._federation.processes.at_home(torch.arange(len(absent)))
        for ids in round.reported:
            absent[ids] = False
        return absent.nonzero().squeeze(1)

    def _carry(self, dual: Tensor, since: Tensor, period: int) -> None:
        """Convert rows of ``dual`` [C, R], in place, from the basis of period ``since`` [C] to that of ``period``.

        One draw after the other, as participants do: the product of all projections is not a projection from the first
        basis to the last.
        """
        stale = dual.any(dim=1).cpu()  # zero is zero in every basis
        for old in range(int(since[stale].min()) if stale.any() else period, period):
            behind = (stale & (since.cpu() <= old)).to(dual.device)
            lifted = self._bases.of_period(old).lift(dual[behind])
            dual[behind] = self._bases.of_period(old + 1).project(lifted)
