"""Speeds from exponential distributions.

"Straggler-Resilient Personalized Federated Learning", section 3.
"""

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.randomness import client_keys, uniform
from lfl.system.speeds import Speeds


class ExponentialSpeeds(Speeds):
    """``T_i ~ Exp(lambda_i)``, drawn once (fixed speeds) or anew in every round (dynamic speeds).

    The expected time of the n-th fastest of N clients with rate lambda is ``1/lambda sum_{j=N-n+1..N} 1/j``.

    Args:
        rates: lambda_i: one for all, or the two ends of a range from which each client's is drawn once, uniformly.
        means: the means 1/lambda_i, in the same form, instead of ``rates``.
        dynamic: whether T_i is drawn anew in every round.
        communication: seconds of communication that every round takes besides (C).
    """

    def __init__(
        self,
        rates: float | list[float] | None = None,
        means: float | list[float] | None = None,
        dynamic: bool = False,
        communication: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(communication)
        if rates is not None and means is not None:
            raise ValueError(f"Give `rates={rates}` or `means={means}` of ExponentialSpeeds, not both.")
        for name, value in (("rates", rates), ("means", means)):
            ends = _ends(value) if value is not None else [1.0]
            if min(ends) <= 0 or len(ends) > 2:
                raise ValueError(
                    f"`{name}={value}` of ExponentialSpeeds must be greater than 0: one number, or a range."
                )
        self.rates = rates
        self.means = means
        self.dynamic = dynamic

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        ends = _ends(self.means or self.rates or 1.0)
        # A client's rate (or mean) has no round in its address: it is the same in every round.
        share = uniform(client_keys(clients, seed, "speed"), 1, torch.float64).squeeze(1)
        scale = ends[0] + (ends[-1] - ends[0]) * share
        unit = _exponential(clients, seed, round_number if self.dynamic else 0)
        return unit * scale if self.means is not None else unit / scale


class ShiftedExponentialSpeeds(Speeds):
    """No client is faster than some time: ``T_i = a + m E_i`` with ``E_i ~ Exp(1)``, drawn once or in every round.

    The usual model of a computer whose work takes a time at least, and an exponential delay on top (Lee et al.,
    "Speeding Up Distributed Machine Learning Using Codes", 2018). The expected time of the n-th fastest of N clients is
    ``a + m sum_{j=N-n+1..N} 1/j``.

    Args:
        shift: a, the least time in seconds.
        mean: m, the mean of the delay in seconds.
        dynamic: whether the delay is drawn anew in every round.
        communication: seconds of communication that every round takes besides (C).
    """

    def __init__(
        self,
        shift: NonNegativeFloat = 1.0,
        mean: PositiveFloat = 1.0,
        dynamic: bool = False,
        communication: NonNegativeFloat = 0.0,
    ) -> None:
        super().__init__(communication)
        check_number("ShiftedExponentialSpeeds", "shift", shift, least=0)
        check_number("ShiftedExponentialSpeeds", "mean", mean, above=0)
        self.shift = shift
        self.mean = mean
        self.dynamic = dynamic

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        return float(self.shift) + float(self.mean) * _exponential(clients, seed, round_number if self.dynamic else 0)


def _exponential(clients: Tensor, seed: int, round_number: int) -> Tensor:
    """Draw Exp(1) of each client [M], float64, by the inverse of its distribution function."""
    keys = client_keys(clients, seed, "compute time", round_number)
    # `uniform` gives [0, 1), so that 1 - u is never 0.
    drawn: Tensor = -torch.log1p(-uniform(keys, 1, torch.float64).squeeze(1))
    return drawn


def _ends(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]
