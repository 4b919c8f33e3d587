"""FedAsync and FedBuff: updates that arrive late, and what they count.

C. Xie, S. Koyejo, I. Gupta, "Asynchronous Federated Optimization", 2019, https://arxiv.org/abs/1903.03934 (FedAsync).
J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba, "Federated Learning with Buffered
Asynchronous Aggregation", AISTATS 2022, https://arxiv.org/abs/2106.06639 (FedBuff).

The staleness s of an update is the number of steps that the server has taken since the client was sent the model: 0 for
one that started from x as it is now.
"""

from abc import ABC, abstractmethod

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.aggregator import Aggregator, WeightingChoice
from lfl.arguments import check_number, fresh_default, lazy_default


class Staleness(ABC):
    """The factor of an update, by its staleness; 1 where it is not late."""

    @abstractmethod
    def factors(self, staleness: Tensor) -> Tensor:
        """Factors [C] (float64) of updates of staleness s [C] (int64)."""


class ConstantStaleness(Staleness):
    """``1``: late updates count as others do."""

    @override
    def factors(self, staleness: Tensor) -> Tensor:
        return torch.ones(len(staleness), dtype=torch.float64)


class PolynomialStaleness(Staleness):
    """``(1 + s)^-a``.

    Args:
        a: the exponent; 0.5 in both papers.
    """

    def __init__(self, a: NonNegativeFloat = 0.5) -> None:
        check_number("PolynomialStaleness", "a", a, least=0)
        self.a = a

    @override
    def factors(self, staleness: Tensor) -> Tensor:
        return (1 + staleness.double()) ** -float(self.a)


class HingeStaleness(Staleness):
    """``1`` up to a staleness of b, from there on ``1 / (a (s - b) + 1)``.

    Args:
        a: how fast it falls; 10 in FedAsync's paper.
        b: the staleness up to which nothing is lost; 4 in FedAsync's paper.
    """

    def __init__(self, a: NonNegativeFloat = 10.0, b: NonNegativeFloat = 4.0) -> None:
        check_number("HingeStaleness", "a", a, least=0)
        check_number("HingeStaleness", "b", b, least=0)
        self.a = a
        self.b = b

    @override
    def factors(self, staleness: Tensor) -> Tensor:
        beyond: Tensor = (staleness.double() - self.b).clamp(min=0)
        factors: Tensor = 1 / (self.a * beyond + 1)
        return factors


class LateMean(Aggregator):
    """Base class of means of updates that count by their staleness.

    Args:
        staleness: the factors.
        weighting: weigh clients alike, or by their numbers of training examples.
    """

    def __init__(
        self, staleness: Staleness = lazy_default(PolynomialStaleness), weighting: WeightingChoice = "uniform"
    ) -> None:
        super().__init__(weighting)
        self.staleness = fresh_default(staleness)

    @override
    def add(self, rows: Tensor, weights: Tensor) -> None:
        self.add_to_mean(rows, weights)

    @override
    def result(self) -> Tensor:
        return self.mean()


class FedBuff(LateMean):
    """``(1/K) sum_i s(s_i) (y_i - x_i)`` over the K updates of a buffer, x_i being the model that client i was sent.

    The server's step in the paper's Algorithm 1; its rate eta_g is that of ``trainer.server_optimizer``. The factors
    are not normalised: a buffer of late updates makes a shorter step. Where nobody is late it is the mean, bit for bit.
    Made for ``lfl.participation.AsynchronousParticipation``, whose ``buffer`` is K.

    Args:
        staleness: what an update counts; ``1 / sqrt(1 + s)`` in the paper.
        weighting: weigh all clients alike, as the paper does, or by their numbers of training examples.
    """

    @override
    def on_arrival(self, rows: Tensor, staleness: Tensor, start: Tensor, server: Tensor) -> Tensor:
        return rows * self.staleness.factors(staleness).to(rows)[:, None]


class FedAsync(LateMean):
    """``alpha_i (y_i - x)`` with ``alpha_i = alpha s(s_i)``: x becomes ``(1 - alpha_i) x + alpha_i y_i`` (Algorithm 1).

    The difference is to x as it is now, not to the model x_i that the client was sent: a late update also pulls the
    server back by ``alpha_i (x_i - x)``. That x_i is kept by the server, so that ``y_i`` follows from what the client
    sends. In the paper every update makes a step (a buffer of 1); with more, their mean does. The server's rate
    multiplies alpha, and is 1 in the paper. Of codecs it sees what they decode to.

    Args:
        alpha: the mixing rate, in (0, 1); 0.6 or 0.9 in the paper.
        staleness: what an update counts: ``ConstantStaleness``, ``PolynomialStaleness`` or ``HingeStaleness``.
        weighting: of the updates of a buffer.

    Raises:
        ValueError: ``alpha`` is not above 0 and at most 1.
    """

    decoded = True

    def __init__(
        self,
        alpha: PositiveFloat = 0.6,
        staleness: Staleness = lazy_default(PolynomialStaleness),
        weighting: WeightingChoice = "uniform",
    ) -> None:
        check_number("FedAsync", "alpha", alpha, above=0)
        if alpha > 1:
            raise ValueError(f"`alpha={alpha}` of FedAsync is a share of the new model, and must be at most 1.")
        super().__init__(staleness, weighting)
        self.alpha = alpha

    @override
    def on_arrival(self, rows: Tensor, staleness: Tensor, start: Tensor, server: Tensor) -> Tensor:
        rates = self.alpha * self.staleness.factors(staleness)
        # Where nobody is late, `start` is x.
        moved = rows + (start - server) if bool(staleness.any()) else rows
        mixed: Tensor = moved * rates.to(rows)[:, None]
        return mixed
