"""FedDC: FedDyn's drift with SCAFFOLD's controls.

L. Gao, H. Fu, L. Li, Y. Chen, M. Xu, C.-Z. Xu, "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling
and Correction", CVPR 2022, https://arxiv.org/abs/2203.11751.
"""

from typing import Any

from jsonargparse.typing import NonNegativeFloat
from typing_extensions import override

from lfl.callback import FederatedCallback, Gradient
from lfl.callbacks.feddyn import FedDyn, check_is_mean, check_whole_updates
from lfl.callbacks.scaffold import Scaffold
from lfl.comm import Message
from lfl.federation import Federation
from lfl.round import Cohort, Round


class FedDC(FederatedCallback):
    """Local gradient ``g(y) + alpha (y - x + h_i) + c - c_i``; the server moves by ``mean delta_i + h``.

    ``h_i`` and ``h`` are those of ``FedDyn``, the sum of a client's movements and its mean over all clients: the
    paper's drift variables. ``c_i`` and ``c`` are those of ``Scaffold``, option II: the paper writes them as movements
    of the last round divided by ``K eta``. The paper averages ``y_i + h_i`` over the participants; its code, and this,
    takes ``mean y_i`` over the participants and ``mean h_i`` over all clients. The code divides by the rate of round 1;
    here it is that of the round in which a client moved.

    State: h, c [D]; h_i, c_i [D] for every client seen so far. Wire: x and c down, delta_i and the change of c_i up.

    Args:
        alpha: weight of a client's drift; 0.01 in the code's example, 0.5 in FLSS's paper; 0 for none.
        server_term: whether the server adds h.
        control_term: whether there are controls. Without all three it is FedAvg, bit for bit.
    """

    is_unique = True

    def __init__(self, alpha: NonNegativeFloat = 0.1, server_term: bool = True, control_term: bool = True) -> None:
        self.alpha = alpha
        self.server_term = server_term
        self.control_term = control_term
        self.drift = FedDyn(alpha, server_term)
        self.control = Scaffold() if control_term else None
        self.parts: list[FederatedCallback] = [self.drift, *([self.control] if self.control else [])]
        self.synchronous = self.drift.synchronous
        self.sends_more = any(part.sends_more for part in self.parts)
        self.weighting = next((part.weighting for part in self.parts if part.weighting), None)

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        check_whole_updates("FedDC", stack)
        other = next((type(c).__name__ for c in stack if isinstance(c, FedDyn | Scaffold)), None)
        if other is not None:
            raise ValueError(f"FedDC is FedDyn with SCAFFOLD's controls: use it alone, without {other}.")

    @override
    def on_run_start(self, federation: Federation) -> None:
        if self.server_term:
            check_is_mean("FedDC", federation.aggregator)
        for part in self.parts:
            part.on_run_start(federation)

    @override
    def on_download(self, message: Message) -> None:
        for part in self.parts:
            part.on_download(message)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        for part in self.parts:
            part.on_cohort_start(cohort)

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        for part in self.parts:
            gradient = part.wrap_gradient(cohort, gradient)
        return gradient

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        for part in self.parts:
            part.on_cohort_end(cohort)

    @override
    def on_aggregate(self, round: Round) -> None:
        for part in self.parts:
            part.on_aggregate(round)

    @override
    def on_server_step(self, round: Round) -> None:
        for part in self.parts:
            part.on_server_step(round)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
