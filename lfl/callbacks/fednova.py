"""FedNova: updates of clients that do different amounts of work, made comparable before they are averaged.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, https://arxiv.org/abs/2007.07481. ``||a_i||_1`` is kept in the scale of
movements, times the rate, which cancels.
"""

from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback, overrides
from lfl.callbacks.feddc import FedDC
from lfl.callbacks.feddyn import FedDyn, check_whole_updates
from lfl.callbacks.proximal import Proximal
from lfl.comm import Payload
from lfl.federation import Federation
from lfl.round import Cohort, Round

_SCALE = "fednova/scale"  # sum of w_i ||a_i||_1
_WEIGHT = "fednova/weight"  # sum of the weights


class FedNova(FederatedCallback):
    """``tau sum_i w_i delta_i / ||a_i||_1`` with ``tau = sum_i w_i ||a_i||_1`` as the update of the server.

    ``||a_i||_1`` is how far client i's optimizer moves along a constant unit gradient: the number of its steps K_i for
    plain SGD. With momentum, a schedule within the round, or a proximal term (``Proximal`` in the same stack) it is
    what their recursion makes of it. Clients with more steps then no longer count more: for small rates the fixed point
    is the optimum of the weighted objective, where FedAvg's is another one. With equal K_i it is FedAvg to rounding.

    A client sends ``delta_i / ||a_i||_1``, so codecs stand behind this callback. The local optimizer must be SGD.
    State: none. Wire: as FedAvg, and one number more up, for each phase of the local work.
    """

    is_unique = True
    sends_more = True

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        check_whole_updates("FedNova", stack)
        for other in stack:
            name = type(other).__name__
            if isinstance(other, FedDyn | FedDC):
                raise ValueError(
                    f"FedNova and {name} have no meaning together: {name} follows the mean of the updates as they are."
                )
            if overrides(other, "encode") and stack.index(other) < stack.index(self):
                raise ValueError(
                    f"{name} stands before FedNova, which scales each client's whole update: put FedNova before {name}."
                )
        self._mu = sum(callback.mu for callback in stack if isinstance(callback, Proximal))

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._aggregator = federation.aggregator
        if self._aggregator.decoded:
            name = type(self._aggregator).__name__
            raise ValueError(
                f"FedNova and {name} have no meaning together: FedNova scales the mean of what clients send, and there "
                "is none. Use MeanAggregator."
            )

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        scale = cohort.step_scale(self._mu)  # [C, 1]; [C, D] where phases freeze parameters
        cohort.rows["fednova"] = scale
        # Sent: one number for each phase, of which the rest follows.
        cohort.upload("fednova", scale[:, :1].expand(-1, len(cohort.phases)))
        weights = self._aggregator.weights(cohort.num_examples).to(scale.device)
        finite = scale.double().where(scale.isfinite(), 0.0)  # infinite for parameters that nobody trains
        cohort.round.accumulate(_SCALE, weights @ finite)
        cohort.round.accumulate(_WEIGHT, weights.sum())

    @override
    def encode(self, cohort: Cohort, payload: Payload) -> Payload:
        return Payload(payload.values / cohort.rows["fednova"], payload.bits)

    @override
    def decode(self, round: Round, values: Tensor) -> Tensor:
        # A mean of what all clients sent: the codec is linear. `round.sums` are complete by now.
        return values * (round.sums[_SCALE] / round.sums[_WEIGHT]).to(values.dtype)
