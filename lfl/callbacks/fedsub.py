"""FedSub: FedAvg in a subspace, with dual variables in the same subspace; a baseline in the paper of SSF.

The update is that of the authors' public code (github.com/JimmyAwoe/FedSub) for orthonormal bases.
"""

from typing import Any, Literal

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
_CLOCK = "fedsub/clock"  # the period and the learning rate for which a client's rows were written [2]
_LAST = "fedsub/last"  # e_i [R], the z_i of the last participation, for `stale`


class FedSub(FederatedCallback):
    """Local steps ``z <- z - eta (P g(x + P^T z) + lambda_i / (K eta))``; then ``lambda_i += z_i - zbar``.

    ``lambda_i`` [R] has the unit of z, not of a gradient. When a new basis is drawn it is converted,
    ``lambda <- P_new P_old^T lambda``; a client that missed several draws makes up for them when it next takes part.
    With a new learning rate it is rescaled by the ratio of the rates. Stated for the mean over clients.

    Args:
        subspace: draws the bases.
        refresh_every: rounds between draws.
        variant: ``public`` is the authors' code: only the participants of a round change their dual. With ``stale`` all
            N clients that have data do, in every round: ``lambda_i += e_i - mean_j e_j``, with e_i the z_i of the last
            participation (zero before the first), taken from basis to basis as lambda_i is. So read, FedSub comes near
            the number that SSF's paper prints for it at heterogeneity 0.1. It costs O(N) a round, and R more numbers of
            state per client.
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
            # The sum of e_i over all clients, on every process, and what it was written under, as of a client's row.
            self._sum = torch.zeros(1, rank, dtype=layout.dtype, device=federation.device)
            self._sum_clock = torch.zeros(1, 2, dtype=torch.float64)
        # What rows were written under: the number of draws before, and the learning rate.
        store.declare(_CLOCK, 2, torch.float64)
        self._bases = RefreshedBasis(self.subspace, self.refresh_every, layout, federation.seed, federation.device)

    @override
    def coordinates(self, round: Round) -> Basis:
        return self._bases.at(round.number)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        cohort.rows["dual"] = self._rows(_DUAL, cohort.ids, cohort.round.number)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        # lambda_i / (K eta). The step lengths ahead are known now, as they depend on settings and not on gradients.
        correction = cohort.rows["dual"] / cohort.step_scale()

        def corrected(coordinates: Tensor, step: LocalStep) -> Tensor:
            return gradient(coordinates, step).add_(correction[: len(coordinates)])

        return corrected

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        """Write ``lambda_i + z_i``; ``on_server_step`` subtracts the mean, when all clients have reported."""
        number = cohort.round.number
        if self.variant == "stale":
            moved = cohort.values - self._rows(_LAST, cohort.ids, number)
            cohort.round.accumulate("fedsub/moved", moved.double().sum(dim=0))
            self._store.scatter(_LAST, cohort.ids, cohort.values)
        self._write(cohort.ids, cohort.rows["dual"] + cohort.values, number)

    @override
    def on_server_step(self, round: Round) -> None:
        store = self._store
        mean = round.update_coordinates  # zbar
        if mean is None:
            return
        if self.variant == "stale":
            mean = self._mean_of_last(round).to(mean)
        # Each process has accepted, and writes, clients of its own only.
        for ids in round.reported:
            store.scatter(_DUAL, ids, store.gather(_DUAL, ids) - mean)
        if self.variant == "stale":
            ids = self._absent(round)
            last = self._rows(_LAST, ids, round.number)
            dual = self._rows(_DUAL, ids, round.number) + last - mean
            store.scatter(_LAST, ids, last)
            self._write(ids, dual, round.number)

    def _mean_of_last(self, round: Round) -> Tensor:
        """The mean [R] of e_i over all clients that have data, those of this round with their new one."""
        total = self._carried(self._sum, self._sum_clock, round.number)
        self._sum = total + round.sums["fedsub/moved"].to(total)
        self._sum_clock = self._clock(round.number)[None]
        return self._sum[0] / self._federation.num_joining

    def _rows(self, slot: str, ids: Tensor, round_number: int) -> Tensor:
        """Rows [C, R] of clients, in the basis and for the learning rate of a round."""
        store = self._store
        return self._carried(store.gather(slot, ids), store.gather(_CLOCK, ids), round_number)

    def _carried(self, rows: Tensor, clock: Tensor, round_number: int) -> Tensor:
        """Rows [C, R] that were written under a clock [C, 2], in the basis and for the learning rate of a round."""
        rows = self._converted(rows, clock[:, 0].long(), self._bases.period(round_number))
        # A clock of 0 was never written: the row is zero, and needs no scale.
        least = torch.finfo(clock.dtype).tiny
        ratio = torch.where(clock[:, 1] > 0, self._federation.rates.lr / clock[:, 1].clamp(min=least), 1.0)
        return rows * ratio[:, None].to(rows)

    def _clock(self, round_number: int) -> Tensor:
        return torch.tensor([float(self._bases.period(round_number)), self._federation.rates.lr], dtype=torch.float64)

    def _write(self, ids: Tensor, dual: Tensor, round_number: int) -> None:
        self._store.scatter(_DUAL, ids, dual)
        self._store.scatter(_CLOCK, ids, self._clock(round_number).expand(len(ids), 2))

    def _absent(self, round: Round) -> Tensor:
        """Ids of this process's clients that have data and are not in the round's aggregate."""
        absent = self._federation.joining
        absent &= self._federation.processes.at_home(torch.arange(len(absent)))
        for ids in round.reported:
            absent[ids] = False
        return absent.nonzero().squeeze(1)

    def _converted(self, rows: Tensor, since: Tensor, period: int) -> Tensor:
        """Convert rows [C, R] from the bases of periods ``since`` [C] to that of ``period``.

        One draw after the other, as participants do: the product of all projections is not a projection from the first
        basis to the last.
        """
        rows, since = rows.clone(), since.cpu()
        stale = rows.any(dim=1).cpu()  # zero is zero in every basis
        for old in range(int(since[stale].min()) if stale.any() else period, period):
            behind = (stale & (since <= old)).to(rows.device)
            lifted = self._bases.of_period(old).lift(rows[behind])
            rows[behind] = self._bases.of_period(old + 1).project(lifted)
        return rows

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum.cpu(), "sum_clock": self._sum_clock} if self.variant == "stale" else {}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.variant == "stale":
            self._sum, self._sum_clock = state_dict["sum"].to(self._sum), state_dict["sum_clock"]
