"""How long the rounds of a simulated system take.

Uplinks: "Communication-efficient Subspace Methods for High-dimensional Federated Learning", section III. Clients of
different speed: "Straggler-Resilient Personalized Federated Learning", section 3.
"""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.randomness import client_keys, uniform


class System(ABC):
    """Turns a round into simulated seconds."""

    @abstractmethod
    def round_seconds(self, clients: Tensor, bits: Tensor, round_number: int, seed: int) -> dict[str, float]:
        """Simulated seconds of a round, by name; their sums over rounds are logged as ``sim/NAME``.

        Args:
            clients: ids of the participants [M].
            bits: bits that each of them sent [M], float64.
            round_number: counted from 1.
            seed: seed of the run.
        """

    def check(self, num_clients: int) -> None:  # noqa: B027  # optional
        """Refuse settings that do not fit the number of clients; raises ValueError."""


class Speeds(System):
    """Clients compute at different speeds, and the server waits for the slowest: a round takes ``max_i T_i + C``.

    Logs ``sim/time``.

    Args:
        communication: seconds of communication that every round takes besides (C).
    """

    def __init__(self, communication: NonNegativeFloat = 0.0) -> None:
        check_number(type(self).__name__, "communication", communication, least=0)
        self.communication = communication

    @abstractmethod
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        """Seconds T_i that each client [M] computes in a round, float64 [M]; functions of (seed, round, client)."""

    def dispatch_seconds(self, clients: Tensor, dispatch: int, seed: int) -> Tensor:
        """Seconds ``T_i + C`` from when clients [M] are sent the model until their updates arrive, float64 [M].

        For clients that are not waited for. What is drawn anew in every round is drawn anew whenever a client is sent
        the model: ``dispatch`` is k for the k-th time.
        """
        seconds: Tensor = self.compute_seconds(clients, dispatch, seed) + self.communication
        return seconds

    @override
    def round_seconds(self, clients: Tensor, bits: Tensor, round_number: int, seed: int) -> dict[str, float]:
        slowest = float(self.compute_seconds(clients, round_number, seed).max())
        return {"time": slowest + self.communication}


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
            ends = _as_list(value) if value is not None else [1.0]
            if min(ends) <= 0 or len(ends) > 2:
                raise ValueError(
                    f"`{name}={value}` of ExponentialSpeeds must be greater than 0: one number, or a range."
                )
        self.rates = rates
        self.means = means
        self.dynamic = dynamic

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        ends = _as_list(self.means or self.rates or 1.0)
        # A client's rate (or mean) has no round in its address: it is the same in every round.
        share = uniform(client_keys(clients, seed, "speed"), 1, torch.float64).squeeze(1)
        scale = ends[0] + (ends[-1] - ends[0]) * share
        keys = client_keys(clients, seed, "compute time", round_number if self.dynamic else 0)
        # Exp(1) by its inverse distribution function. `uniform` gives [0, 1), so that 1 - u is never 0.
        unit = -torch.log1p(-uniform(keys, 1, torch.float64).squeeze(1))
        return unit * scale if self.means is not None else unit / scale


class FixedTimes(Speeds):
    """Clients that compute for given times T_i.

    Args:
        times: T_i of every client in seconds, for round 1, round 2, ...; repeated when the list ends.
        communication: seconds of communication that every round takes besides (C).
    """

    def __init__(self, times: list[list[float]], communication: NonNegativeFloat = 0.0) -> None:
        super().__init__(communication)
        self.times = times

    @override
    def check(self, num_clients: int) -> None:
        if not self.times or any(len(row) != num_clients for row in self.times):
            raise ValueError(f"`times` of FixedTimes must list {num_clients} numbers, one a client, for each round.")

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        times = self.times[(round_number - 1) % len(self.times)]
        return torch.tensor([times[i] for i in clients.tolist()], dtype=torch.float64)


class Uplink(System):
    """Clients share an uplink to the server. Logs ``sim/uplink_time``."""

    @abstractmethod
    def uplink_seconds(self, clients: Tensor, bits: Tensor) -> float:
        """Seconds until all uploads of a round have arrived.

        Args:
            clients: ids of the participants [M].
            bits: bits that each of them sent [M], float64.
        """

    @override
    def round_seconds(self, clients: Tensor, bits: Tensor, round_number: int, seed: int) -> dict[str, float]:
        return {"uplink_time": self.uplink_seconds(clients, bits)}


class TimeSharing(Uplink):
    """One device sends at a time, each at its own rate: ``sum_i bits_i / r_i``.

    Args:
        rates: r_i in bits per second: one for all clients, or a list.
    """

    def __init__(self, rates: float | list[float]) -> None:
        self.rates = rates
        if min(_as_list(rates)) <= 0:
            raise ValueError(
                f"`rates` of TimeSharing must be greater than 0 bits per second, found {min(_as_list(rates))}."
            )

    @override
    def check(self, num_clients: int) -> None:
        if isinstance(self.rates, list) and len(self.rates) != num_clients:
            raise ValueError(
                f"`rates` of TimeSharing lists {len(self.rates)} rates, but there are {num_clients} clients."
            )

    @override
    def uplink_seconds(self, clients: Tensor, bits: Tensor) -> float:
        rates = [self.rates[i] for i in clients.tolist()] if isinstance(self.rates, list) else self.rates
        return float((bits.cpu() / torch.tensor(rates, dtype=torch.float64)).sum())


class ChannelSharing(Uplink):
    """All devices send at once and share a capacity.

    Args:
        capacity: the shared capacity C in bits per second.
        split: ``optimal`` gives each a share proportional to its bits, so that all end together, after
            ``sum_i bits_i / C`` seconds; ``equal`` gives each the same share, ``max_i bits_i / (C / M)`` seconds.
    """

    def __init__(self, capacity: PositiveFloat, split: Literal["optimal", "equal"] = "optimal") -> None:
        self.capacity = capacity
        self.split = split

    @override
    def uplink_seconds(self, clients: Tensor, bits: Tensor) -> float:
        bits_at_capacity = bits.sum() if self.split == "optimal" else bits.max() * len(bits)
        return float(bits_at_capacity) / float(self.capacity)


def _as_list(value: float | list[float]) -> list[float]:
    return value if isinstance(value, list) else [value]
