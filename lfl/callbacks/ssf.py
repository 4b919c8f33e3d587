"""SSF: SCAFFOLD in a random subspace, with backfill.

"Subspace Optimization for Efficient Federated Learning under Heterogeneous Data", Algorithm 1, in coordinates: the
local optimizer runs on z with y = x + P^T z. The paper writes the same as a projected and a fixed component of y.
"""

from typing import Any

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import fresh_default, lazy_default
from lfl.callback import FederatedCallback, Gradient, refuse_lossy_codecs
from lfl.callbacks.scaffold import ControlUpdate, Scaffold
from lfl.client.layout import ParameterLayout
from lfl.client.step import LocalStep
from lfl.comm import Message, dense_bits
from lfl.federation import Federation
from lfl.round import Cohort, Round
from lfl.subspace import Basis, LayerwiseSubspace, Subspace
from lfl.subspace.refresh import RefreshedBasis

_SLOT = "ssf/control"  # c_i [D] of each client
_PROJECTED = "ssf/projected_control"  # P c [R], in the message


class SSF(FederatedCallback):
    """Local steps ``z <- z - eta (P g(x + P^T z) - P c_i + P c)``; the server moves by ``P^T`` of the mean z.

    The controls c and c_i are vectors [D]; a round replaces their components in the span of its basis and keeps the
    others (backfill): ``c_i += P^T (mean_k P g^k - P c_i)``, ``c += (1/N) sum dc_i`` over the participants, where dc_i
    is the change of c_i. With plain SGD the mean projected gradient follows from z (``-z/(K eta) + P c_i - P c``), so
    that R floats go up; with any other local optimizer it is accumulated and sent, R floats more. The bases come from
    the seed and are never sent. A client brings x and c up to date with R floats each for every round it missed.
    R = D is SCAFFOLD option II. Stated for the mean over clients.

    Args:
        subspace: draws the bases.
        refresh_every: rounds between draws.
        control_update: how c is computed from the participants' controls. ``increment`` keeps c = mean c_i over all N
            clients that have data, so that the optimum is a fixed point. Algorithm 1 prints a sum that includes clients
            that did not take part. Read as the mean over the participants (``sampled_mean``), with
            ``P c = mean_S mean_k P g``, it gives the paper's numbers; read literally (``one_over_N``) c is too small.
    """

    weighting = "uniform"
    sends_more = True
    whole_model = True

    def __init__(
        self,
        subspace: Subspace = lazy_default(LayerwiseSubspace, rank=0.2),
        refresh_every: PositiveInt = 1,
        control_update: ControlUpdate = "increment",
    ) -> None:
        self.subspace = fresh_default(subspace)
        self.refresh_every = refresh_every
        self.control_update = control_update
        self.control = torch.empty(0)

    @override
    def check(self, layout: ParameterLayout) -> None:
        self.subspace.check(layout)

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        refuse_lossy_codecs("SSF", stack)
        if any(isinstance(other, Scaffold) for other in stack):
            raise ValueError("SSF is Scaffold in a subspace, with controls of its own: use one of the two.")

    @override
    def on_run_start(self, federation: Federation) -> None:
        layout = federation.layout
        self._store = federation.store
        self._ledger = federation.ledger
        self._num_clients = federation.num_joining
        self._store.declare(_SLOT, layout.dim, layout.dtype)
        self.control = torch.zeros_like(federation.server.vector)
        self._bases = RefreshedBasis(self.subspace, self.refresh_every, layout, federation.seed, federation.device)

    @override
    def coordinates(self, round: Round) -> Basis:
        basis = self._bases.at(round.number)
        # Of c before the round, once for all: `on_server_step` needs it as well.
        self._projected_control = basis.project(self.control)
        return basis

    @override
    def on_download(self, message: Message) -> None:
        message.add("control", self.control)
        # P c: clients have c and draw P from the seed. Computed once here instead of once by every client.
        message.derive(_PROJECTED, self._projected_control)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        projected = _basis(cohort.round).project(self._store.gather(_SLOT, cohort.ids))  # P c_i [C, R]
        cohort.rows["control"] = projected
        cohort.rows["gradient_sum"] = torch.zeros_like(projected)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        correction = cohort.received[_PROJECTED] - cohort.rows["control"]
        total = None if cohort.optimizer.is_plain_sgd else cohort.rows["gradient_sum"]

        def corrected(coordinates: Tensor, step: LocalStep) -> Tensor:
            gradients = gradient(coordinates, step)
            if total is not None:
                total[: len(gradients)] += gradients  # P g, before the correction is added in place
            return gradients.add_(correction[: len(gradients)])

        return corrected

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        # mean_k P g^k - P c_i. With plain SGD z = -K eta (mean_k P g^k - P c_i + P c); z points against the gradient.
        if cohort.optimizer.is_plain_sgd:
            change = -cohort.received[_PROJECTED] - cohort.values / cohort.step_scale()
        else:
            steps = cohort.num_steps.to(cohort.values)[:, None]
            change = cohort.rows["gradient_sum"] / steps - cohort.rows["control"]
            cohort.upload("control", change)
        reported = change if self.control_update == "increment" else change + cohort.rows["control"]
        cohort.round.accumulate("ssf/control", reported.sum(dim=0, dtype=torch.float64))
        # Gathered again, and not kept from the start: full controls would be [C, D] numbers during all local steps.
        client_controls = self._store.gather(_SLOT, cohort.ids)
        self._store.scatter(_SLOT, cohort.ids, client_controls + _basis(cohort.round).lift(change))

    @override
    def on_server_step(self, round: Round) -> None:
        if "ssf/control" in round.sums:
            divisor = round.num_reported if self.control_update == "sampled_mean" else self._num_clients
            change = (round.sums["ssf/control"] / divisor).to(self.control.dtype)
            if self.control_update != "increment":
                change -= self._projected_control  # the sum is the new P c; what is lifted is its change
            self.control = self.control + _basis(round).lift(change)
        # In every round, also one without reports: the ledger counts increments by the number of the round.
        self._ledger.record_increment("control", dense_bits(self._projected_control), round.number)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"control": self.control.cpu()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.control = state_dict["control"].to(self.control)


def _basis(round: Round) -> Basis:
    assert round.basis is not None
    return round.basis
