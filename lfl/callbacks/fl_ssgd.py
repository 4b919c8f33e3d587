"""FL-SSGD: every client sends its gradient on its own random coordinates.

"Communication-efficient Subspace Methods for High-dimensional Federated Learning", Algorithm 1.
"""

from typing import Any, Literal

from jsonargparse.typing import PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback
from lfl.client.layout import ParameterLayout
from lfl.comm import Payload
from lfl.randomness import client_keys
from lfl.round import Cohort, Round
from lfl.subspace.subsets import check_expected, random_subsets
from lfl.system import Uplink


class FLSSGD(FederatedCallback):
    """Uploads ``tau_i`` of D coordinates of the update, E tau_i = l_i; the server scales by D/l_i: unbiased.

    ``x+ = x - alpha sum_i w_i (D/l_i) P_i (P_i^T P_i)^-1 P_i^T g_i`` with P_i random columns of the identity, when
    local work is one step of plain SGD with rate alpha (``local_steps: 1``); with more, the movement is subsampled.
    Clients and server draw the coordinates from the seed: no indices travel. ``l = D`` is FedAvg. No state.

    Args:
        l: expected number of coordinates, one for all clients or a list; need not be whole. ``auto`` takes the numbers
            that minimise the paper's bound on the uplink time under the trainer's ``system``: equation (4) for time
            sharing, (5) for channel sharing; it needs the three constants below.
        gap: f(x_0) - f*, for ``auto``.
        smoothness: L, for ``auto``.
        gradient_bound: G, for ``auto``.
    """

    linear = False  # every client has its own coordinates: decoded before averaging

    def __init__(
        self,
        l: float | list[float] | Literal["auto"],  # noqa: E741  # the paper's letter
        gap: PositiveFloat | None = None,
        smoothness: PositiveFloat | None = None,
        gradient_bound: PositiveFloat | None = None,
    ) -> None:
        self.l, self.gap, self.smoothness, self.gradient_bound = l, gap, smoothness, gradient_bound
        if l == "auto" and (gap is None or smoothness is None or gradient_bound is None):
            raise ValueError("`l=auto` of FLSSGD needs `gap` (f(x_0) - f*), `smoothness` (L) and `gradient_bound` (G).")

    @override
    def check(self, layout: ParameterLayout) -> None:
        if self.l != "auto":
            values = self.l if isinstance(self.l, list) else [self.l]
            check_expected(values, layout.dim, len(values))

    @override
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            chosen = self._choose(trainer) if self.l == "auto" else self.l
            self._expected = check_expected(chosen, trainer.layout.dim, trainer.num_clients)

    def _choose(self, trainer: Any) -> list[float]:
        weights = trainer.aggregator.weights(trainer.data.client_sizes)
        if not isinstance(trainer.system, Uplink):
            raise ValueError("`l=auto` of FLSSGD needs a `system`: TimeSharing or ChannelSharing.")
        gap, smoothness, bound = (float(value or 0) for value in (self.gap, self.smoothness, self.gradient_bound))
        shares = (weights / weights.sum()).tolist()
        return trainer.system.best_coordinates(gap, smoothness, bound, shares, trainer.layout.dim)

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        rows = payload.values
        masks = self.masks(cohort, rows.shape[1])
        scale = rows.shape[1] / self._expected[cohort.ids].to(rows)
        bits = masks.sum(dim=1) * rows.element_size() * 8
        return Payload(rows * masks * scale[:, None], bits)

    def masks(self, cohort: Cohort, dim: int) -> Tensor:
        """The coordinates of each client in this round, [C, dim] (bool)."""
        device = cohort.values.device
        keys = client_keys(cohort.ids.to(device), cohort.round.trainer.seed, "fl-ssgd", cohort.round.number)
        return random_subsets(keys, self._expected[cohort.ids].to(device), dim)

    @override
    def decode(self, round: Round, values: Tensor) -> Tensor:
        return values  # scattered and scaled where it was encoded; what travelled is counted there
