"""FedDyn: every client's objective is shifted by what the client has moved so far.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, "Federated Learning Based on
Dynamic Regularization", ICLR 2021, https://arxiv.org/abs/2111.04263. Its state is kept here in the scale of movements:
what the paper has as a client's gradient is ``-alpha h_i``, and as the server's h ``-alpha h`` (Algorithm 1).
"""

from typing import Any

import torch
from jsonargparse.typing import NonNegativeFloat
from torch import Tensor
from typing_extensions import override

from lfl.aggregation import Aggregator, MeanAggregator
from lfl.arguments import check_number
from lfl.callback import FederatedCallback, Gradient, overrides
from lfl.client.step import LocalStep
from lfl.federation import Federation
from lfl.round import Cohort, Round

_SLOT = "feddyn/moved"
_WEIGHT = "feddyn/weight"  # sum of the participants' weights


class FedDyn(FederatedCallback):
    """Local gradient ``g(y) + alpha (y - x + h_i)``; the server moves by ``mean delta_i + h``.

    ``h_i`` is the sum of all movements of client i so far, and ``h`` that of all clients, divided by N:
    ``h <- h + (1/N) sum delta_i`` over the participants, so that ``h = mean h_i``. At rest ``alpha h_i`` is minus the
    client's gradient at x, and the gradients add up to zero: x is the optimum, however many steps clients take.

    The two terms have switches of their own. ``alpha=0`` alone is not FedAvg: h does not depend on alpha, and makes a
    double integrator of the server, which oscillates. In round 1 with all clients x moves twice as far as in FedAvg.

    With other weights than uniform ones, h is the weighted mean of the h_i, and x the optimum of that objective.
    State: h [D]; h_i [D] for every client seen so far. Wire: as FedAvg, since the server follows h from the updates.

    Args:
        alpha: weight of a client's term; 0 for none.
        server_term: whether the server adds h. Without it and with ``alpha=0`` it is FedAvg, bit for bit.
    """

    is_unique = True

    def __init__(self, alpha: NonNegativeFloat = 0.1, server_term: bool = True) -> None:
        check_number(type(self).__name__, "alpha", alpha, least=0)
        self.alpha = alpha
        self.server_term = server_term
        self.weighting = "uniform" if alpha or server_term else None
        self.synchronous = server_term  # x is the mean of the clients' models, and h: not a sum of late movements
        self.drift = torch.empty(0)  # h

    @override
    def check_stack(self, stack: list[FederatedCallback]) -> None:
        check_whole_updates("FedDyn", stack)

    @override
    def on_run_start(self, federation: Federation) -> None:
        if self.server_term:
            check_is_mean("FedDyn", federation.aggregator)
        self._store = federation.store
        self._aggregator = federation.aggregator
        if self.alpha:
            self._store.declare(_SLOT, federation.layout.dim, federation.layout.dtype)
        weights = self._aggregator.weights(federation.data.client_sizes)
        self._total = float(weights[federation.joining].sum())
        self.drift = torch.zeros_like(federation.server.vector)

    @override
    def on_cohort_start(self, cohort: Cohort) -> None:
        if self.alpha:
            cohort.rows["moved"] = self._store.gather(_SLOT, cohort.ids)  # h_i [C, D]

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        if not self.alpha:
            return gradient
        # y - x + h_i as one difference.
        centre = cohort.origin - cohort.rows["moved"]

        def dynamic(params: Tensor, step: LocalStep) -> Tensor:
            return gradient(params, step).add_(params - centre[: len(params)], alpha=self.alpha)

        return dynamic

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        if self.alpha:
            self._store.scatter(_SLOT, cohort.ids, cohort.rows["moved"] + cohort.delta)
        if self.server_term:
            cohort.round.accumulate(_WEIGHT, self._aggregator.weights(cohort.num_examples).sum())

    @override
    def on_aggregate(self, round: Round) -> None:
        if not self.server_term or round.update is None:
            return
        # sum_S w_i delta_i / sum_N w_i, which is (M / N) mean delta_i for uniform weights.
        self.drift = self.drift + float(round.sums[_WEIGHT]) / self._total * round.update
        round.update = round.update + self.drift

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"drift": self.drift.cpu()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.drift = state_dict["drift"].to(self.drift)


def check_whole_updates(owner: str, stack: list[FederatedCallback]) -> None:
    """Refuse clients that send coordinates, for a method whose state follows updates of all parameters.

    Raises:
        ValueError: a callback of the stack owns coordinates.
    """
    other = next((type(c).__name__ for c in stack if overrides(c, "coordinates")), None)
    if other is not None:
        raise ValueError(
            f"{owner} and {other} have no meaning together: {owner} follows updates of all parameters, and with "
            f"{other} clients send coordinates in a basis that changes."
        )


def check_is_mean(owner: str, aggregator: Aggregator) -> None:
    """Refuse another aggregate than the mean, for a method whose server adds up the mean of the clients' movements.

    Raises:
        ValueError: the aggregator is no MeanAggregator.
    """
    if not isinstance(aggregator, MeanAggregator):
        raise ValueError(
            f"{owner} and {type(aggregator).__name__} have no meaning together: the server of {owner} adds up the mean "
            "of the clients' updates. Use MeanAggregator."
        )
