"""FedExP: a server step that is longer where the clients' updates disagree.

D. Jhunjhunwala, S. Wang, G. Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023,
https://arxiv.org/abs/2301.09604.
"""

from jsonargparse.typing import NonNegativeFloat
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.aggregator import Aggregator, WeightingChoice
from lfl.arguments import check_number


class FedExP(Aggregator):
    """``eta_g sum_i w_i delta_i`` with ``eta_g = max(1, sum_i w_i |delta_i|^2 / (2 (|sum_i w_i delta_i|^2 + eps)))``.

    With M orthogonal updates of one length eta_g is M / 2; with equal ones, or one client alone, the aggregate is the
    mean, bit for bit. eta_g is logged as ``fedexp/eta_g``; the server's own rate multiplies it. The authors' code has
    ``M eps`` in place of eps, smaller in every round, and evaluates the mean of the last two iterates, since x itself
    oscillates: ``lfl.callbacks.AveragedEvaluation`` does that.

    Args:
        eps: keeps the step bounded where the mean is near zero, in units of squared updates; 1e-3 for CIFAR-10 and 0.1
            for EMNIST in the authors' code.
        weighting: weigh all clients alike, as the paper does, or by their numbers of training examples.
    """

    def __init__(self, eps: NonNegativeFloat = 1e-3, weighting: WeightingChoice = "uniform") -> None:
        check_number("FedExP", "eps", eps, least=0)
        super().__init__(weighting)
        self.eps = eps

    @override
    def add(self, rows: Tensor, weights: Tensor) -> None:
        self.add_to_mean(rows, weights)
        self.accumulate("square", weights.to(rows.device) @ rows.double().square().sum(dim=1))

    @override
    def result(self) -> Tensor:
        return self.mean() * self._step()

    @override
    def metrics(self) -> dict[str, Tensor]:
        return {"fedexp/eta_g": self._step()}

    def _step(self) -> Tensor:
        """eta_g."""
        squares = 2 * (self.mean().square().sum() + self.eps)
        step: Tensor = self.sums["square"] / self.sums["weight"] / squares
        return step.where(squares > 0, 1.0).clamp(min=1.0)  # the mean is zero, and so is eps: nothing to stretch
