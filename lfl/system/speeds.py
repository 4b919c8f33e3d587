"""Clients that compute at different speeds: what their clocks share, and speeds that are given as numbers.

"Straggler-Resilient Personalized Federated Learning", section 3.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.system.base import System


@dataclass(frozen=True)
class ClientTimes:
    """The seconds that clients spend on one thing after another, float64 [M] each.

    Attributes:
        download: until the model has arrived.
        compute: for local work.
        upload: until the answer has arrived.
    """

    download: Tensor
    compute: Tensor
    upload: Tensor

    @property
    def total(self) -> Tensor:
        """Seconds from the start of the download to the answer [M]."""
        return self.download + self.compute + self.upload


class Speeds(System):
    """Clients compute at different speeds, and the server waits for the slowest: a round takes ``max_i T_i + C``.

    Logs ``sim/time``.

    Args:
        communication: seconds of communication that every round takes besides (C); they are the upload's.
    """

    def __init__(self, communication: NonNegativeFloat = 0.0) -> None:
        check_number(type(self).__name__, "communication", communication, least=0)
        self.communication = communication

    @abstractmethod
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        """Seconds T_i that each client [M] computes in a round, float64 [M]; functions of (seed, round, client)."""

    def client_times(
        self, clients: Tensor, bits: Tensor | None, round_number: int, seed: int, down_bits: Tensor | None = None
    ) -> ClientTimes:
        """The seconds of each client [M] and what it spends them on; the arguments are those of ``client_seconds``."""
        del bits, down_bits
        seconds = self.compute_seconds(clients, round_number, seed)
        return ClientTimes(torch.zeros_like(seconds), seconds, torch.full_like(seconds, self.communication))

    @override
    def client_seconds(
        self, clients: Tensor, bits: Tensor | None, round_number: int, seed: int, down_bits: Tensor | None = None
    ) -> Tensor:
        seconds = self.client_times(clients, bits, round_number, seed, down_bits).total
        if seconds.shape != clients.shape or not bool((seconds >= 0).all()):
            raise ValueError(
                f"{type(self).__name__} must give a number of seconds, 0 at least, for each of {len(clients)} clients; "
                f"it gave {seconds.tolist()}."
            )
        return seconds

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
        return {"time": float(self.client_seconds(clients, bits, round_number, seed, down_bits).max())}


class EqualSpeeds(Speeds):
    """All clients compute for the same time: ``T_i = seconds``.

    Alone it counts rounds. In ``PerExample`` it is the time of one example, in ``Stragglers`` that of a fast client.

    Args:
        seconds: T_i of every client and round.
        communication: seconds of communication that every round takes besides (C).
    """

    def __init__(self, seconds: PositiveFloat = 1.0, communication: NonNegativeFloat = 0.0) -> None:
        super().__init__(communication)
        check_number("EqualSpeeds", "seconds", seconds, above=0)
        self.seconds = seconds

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        return torch.full((len(clients),), float(self.seconds), dtype=torch.float64)


class FixedTimes(Speeds):
    """Clients that compute for given times: ``T_i`` of round t is ``times[(t - 1) mod length][i]``.

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
