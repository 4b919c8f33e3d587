"""Links with rates, and clients that download, compute and upload one after another."""

from __future__ import annotations

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.randomness import client_keys, normal
from lfl.system.around import refuse_losses
from lfl.system.base import Workload
from lfl.system.speeds import ClientTimes, Speeds

Rates = float | list[float] | None


class Links(Speeds):
    """Every client has a link of its own: ``T_i = down_bits_i / (d_i s_i) + up_bits_i / (u_i s_i)``.

    The bits are the ledger's: what a client is charged for in the round, both ways, catching up and extra payloads
    included. ``s_i = exp(sigma z_i)``, z_i standard normal, drawn once. Clients compute in no time; put links beside
    speeds into ``Consecutive``.

    How much a client will send is known only when it has encoded it. What is decided before that, whose answers are
    first (``FastestParticipation``) and who misses a deadline (``Unreliable``), takes ``expected_up`` and
    ``expected_down``. The clock then has the bits that were sent, and may pass the deadline where more was sent than
    expected.

    Args:
        up: u_i in bits per second: one rate for all clients, or a list; none where sending takes no time.
        down: d_i, in the same form.
        sigma: how much the clients' rates differ: standard deviation of the logarithm of s_i.
        expected_up: bits that a client is expected to send; none for the whole model, uncompressed.
        expected_down: bits that it is expected to receive; none for the whole model, uncompressed.

    Raises:
        ValueError: a rate is not greater than 0, or there are not as many as clients.
    """

    def __init__(
        self,
        up: Rates = None,
        down: Rates = None,
        sigma: NonNegativeFloat = 0.0,
        expected_up: PositiveFloat | None = None,
        expected_down: PositiveFloat | None = None,
    ) -> None:
        super().__init__()
        for name, rates in (("up", up), ("down", down)):
            for rate in rates if isinstance(rates, list) else [] if rates is None else [rates]:
                check_number("Links", name, rate, above=0)
        check_number("Links", "sigma", sigma, least=0)
        for name, expected in (("expected_up", expected_up), ("expected_down", expected_down)):
            if expected is not None:
                check_number("Links", name, expected, above=0)
        self.up = up
        self.down = down
        self.sigma = sigma
        self.expected_up = expected_up
        self.expected_down = expected_down

    @override
    def check(self, num_clients: int) -> None:
        for name, rates in (("up", self.up), ("down", self.down)):
            if isinstance(rates, list) and len(rates) != num_clients:
                raise ValueError(f"`{name}` of Links lists {len(rates)} rates, but there are {num_clients} clients.")

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        return torch.zeros(len(clients), dtype=torch.float64)

    @override
    def client_times(
        self, clients: Tensor, bits: Tensor | None, round_number: int, seed: int, down_bits: Tensor | None = None
    ) -> ClientTimes:
        download = self._seconds(clients, down_bits, self.down, self.expected_down, seed)
        upload = self._seconds(clients, bits, self.up, self.expected_up, seed)
        return ClientTimes(download, self.compute_seconds(clients, round_number, seed), upload)

    def _seconds(self, clients: Tensor, bits: Tensor | None, rates: Rates, expected: float | None, seed: int) -> Tensor:
        if rates is None:
            return torch.zeros(len(clients), dtype=torch.float64)
        if bits is None:
            bits = torch.full((len(clients),), self._expected(expected), dtype=torch.float64)
        listed = [rates[i] for i in clients.tolist()] if isinstance(rates, list) else rates
        own = torch.tensor(listed, dtype=torch.float64)
        if self.sigma:
            # Of the client alone: a fast link is fast both ways.
            own = own * (self.sigma * normal(client_keys(clients, seed, "link"), 1, torch.float64).squeeze(1)).exp()
        return bits.double().cpu() / own

    def _expected(self, bits: float | None) -> float:
        if bits is not None:
            return bits
        if self.workload is None:
            raise ValueError("Links needs to know the size of the model, or `expected_up` and `expected_down`.")
        return self.workload.model_bits


class Consecutive(Speeds):
    """Several clocks in one, one after another: ``T_i = sum_k T_i^k``.

    ``[PerExample(), Links(up=1e6, down=1e7)]`` are clients that download, compute and upload:
    ``T_i = down_bits_i / d + m_i tau + up_bits_i / u``.

    Args:
        parts: the clocks; downloads come first, then all computing, then uploads and communication.

    Raises:
        ValueError: there are none, or one of them loses clients.
    """

    def __init__(self, parts: list[Speeds]) -> None:
        super().__init__()
        if not parts:
            raise ValueError("`parts=[]` of Consecutive takes no time: name some, such as `lfl.system.PerExample`.")
        for part in parts:
            refuse_losses(self, part)
        self.parts = parts

    @override
    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        for part in self.parts:
            part.prepare(workload)

    @override
    def check(self, num_clients: int) -> None:
        for part in self.parts:
            part.check(num_clients)

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        return torch.stack([part.compute_seconds(clients, round_number, seed) for part in self.parts]).sum(dim=0)

    @override
    def client_times(
        self, clients: Tensor, bits: Tensor | None, round_number: int, seed: int, down_bits: Tensor | None = None
    ) -> ClientTimes:
        times = [part.client_times(clients, bits, round_number, seed, down_bits) for part in self.parts]
        return ClientTimes(
            torch.stack([own.download for own in times]).sum(dim=0),
            torch.stack([own.compute for own in times]).sum(dim=0),
            torch.stack([own.upload for own in times]).sum(dim=0),
        )
