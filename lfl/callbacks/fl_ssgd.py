"""FL-SSGD: every client sends its gradient on its own random coordinates.

"Communication-efficient Subspace Methods for High-dimensional Federated Learning", Algorithm 1.
"""

from typing import Literal

from jsonargparse.typing import PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback
from lfl.callbacks.uplink_bound import best_coordinates_channel_sharing, best_coordinates_time_sharing
from lfl.client.layout import ParameterLayout
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.round import Cohort, Round
from lfl.subspace.subsets import check_expected, random_subsets
from lfl.system import ChannelSharing, TimeSharing


class FLSSGD(FederatedCallback):
    """Uploads ``tau_i`` of D coordinates of the update, E tau_i = l_i, scaled by D/l_i so that the mean is unbiased.

    ``x+ = x - alpha sum_i w_i (D/l_i) P_i (P_i^T P_i)^-1 P_i^T g_i`` with P_i random columns of the identity, when
    local work is one step of plain SGD with rate alpha (``local_steps: 1``); with more steps, the whole update is
    subsampled in the same way. Clients and server draw the coordinates from the seed: no indices are sent. ``l = D``
    is FedAvg. No state.

    Args:
        l: expected number of coordinates, one for all clients or a list; need not be whole. ``auto`` takes the numbers
            that minimise the paper's bound on the uplink time under the trainer's ``system``: equation (4) for time
            sharing, (5) for channel sharing; it needs the three constants below.
        gap: f(x_0) - f*, how far the objective can fall, for ``auto``.
        smoothness: Lipschitz constant L of the gradient, for ``auto``.
        gradient_bound: bound G on the norm of stochastic gradients, for ``auto``.
    """

    weighting = "uniform"
    linear = False  # every client has coordinates of its own, so that payloads cannot be averaged encoded

    def __init__(
        self,
        l: float | list[float] | Literal["auto"],  # noqa: E741  # the paper's letter
        gap: PositiveFloat | None = None,
        smoothness: PositiveFloat | None = None,
        gradient_bound: PositiveFloat | None = None,
    ) -> None:
        self.l = l
        self.gap = gap
        self.smoothness = smoothness
        self.gradient_bound = gradient_bound
        if l == "auto" and (gap is None or smoothness is None or gradient_bound is None):
            raise ValueError("`l=auto` of FLSSGD needs `gap` (f(x_0) - f*), `smoothness` (L) and `gradient_bound` (G).")

    @override
    def check(self, layout: ParameterLayout) -> None:
        if self.l != "auto":
            values = self.l if isinstance(self.l, list) else [self.l]
            check_expected(values, layout.dim, len(values))

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._federation = federation
        chosen = self._choose(federation) if self.l == "auto" else self.l
        self._expected = check_expected(chosen, federation.layout.dim, federation.num_clients)

    def _choose(self, federation: Federation) -> list[float]:
        """The l_i that minimise the paper's bound under the simulated system."""
        system = federation.system
        dim = federation.layout.dim
        weights = federation.aggregator.weights(federation.data.client_sizes)
        shares = (weights / weights.sum()).tolist()
        gap, smoothness, bound = (float(value or 0) for value in (self.gap, self.smoothness, self.gradient_bound))
        if isinstance(system, TimeSharing):
            rates = system.rates if isinstance(system.rates, list) else [system.rates] * len(shares)
            return best_coordinates_time_sharing(gap, smoothness, bound, shares, rates, dim)
        if isinstance(system, ChannelSharing):
            return list(best_coordinates_channel_sharing(gap, smoothness, bound, shares, dim))
        raise ValueError("`l=auto` of FLSSGD needs a `system`: TimeSharing or ChannelSharing.")

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        # Rows keep their zeros, as the mean needs all D columns; what is charged is the floats that would be sent.
        rows = payload.values
        masks = self.masks(cohort, rows.shape[1])
        scale = rows.shape[1] / self._expected[cohort.ids].to(rows)
        bits = masks.sum(dim=1) * rows.element_size() * 8
        return Payload(rows * masks * scale[:, None], bits)

    def masks(self, cohort: Cohort, dim: int) -> Tensor:
        """The coordinates of each client in this round, [C, dim] (bool)."""
        keys = self._federation.keys(cohort.ids, "fl-ssgd", cohort.round.number)
        return random_subsets(keys, self._expected[cohort.ids].to(keys.device), dim)

    @override
    def decode(self, round: Round, values: Tensor) -> Tensor:
        return values  # `encode` has scaled the coordinates and put them in their places
