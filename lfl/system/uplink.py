"""Uplinks that the clients of a round share.

"Communication-efficient Subspace Methods for High-dimensional Federated Learning", section III.
"""

from abc import abstractmethod
from typing import Literal

import torch
from jsonargparse.typing import PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.system.base import System


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
    def round_seconds(
        self,
        clients: Tensor,
        bits: Tensor,
        round_number: int,
        seed: int,
        down_bits: Tensor | None = None,
        num_lost: int = 0,
    ) -> dict[str, float]:
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
