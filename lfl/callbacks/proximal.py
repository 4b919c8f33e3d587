"""FedProx: a proximal term that keeps clients near the server.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, https://arxiv.org/abs/1812.06127.
"""

from jsonargparse.typing import NonNegativeFloat
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback, Gradient
from lfl.client.step import LocalStep
from lfl.round import Cohort


class Proximal(FederatedCallback):
    """Adds ``mu/2 |y - x|^2`` to every client's objective (eq. 2): gradient ``g(y) + mu (y - x)``.

    The gradient of the term is added to that of the loss, before momentum and clipping. The logged training loss does
    not contain the term. ``mu=0`` is FedAvg bit for bit. A step is stable for ``lr * mu < 2``.

    Args:
        mu: weight of the term; 0.001 to 1 in the paper.
    """

    def __init__(self, mu: NonNegativeFloat = 0.01) -> None:
        self.mu = mu

    @override
    def wrap_gradient(self, cohort: Cohort, gradient: Gradient) -> Gradient:
        if self.mu == 0:
            return gradient
        origin = cohort.origin

        def proximal(params: Tensor, step: LocalStep) -> Tensor:
            # x [D] for all, or a row [C, D] for each client, of which the first A are still at work.
            start = origin if origin.dim() == 1 else origin[: len(params)]
            return gradient(params, step).add_(params - start, alpha=self.mu)

        return proximal
