"""Clients that drop out, and a server that waits no longer than until a deadline."""

from __future__ import annotations

import math

import torch
from jsonargparse.typing import PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number, fresh_default, lazy_default
from lfl.randomness import client_keys, uniform
from lfl.system.base import Answers, Workload
from lfl.system.exponential import ExponentialSpeeds
from lfl.system.speeds import ClientTimes, Speeds


class Unreliable(Speeds):
    """Loses clients: client i drops out of a round with probability p_i, and is late where ``T_i > deadline``.

    Both are decided before a client is trained, by its expected time (see ``Links`` for what is expected of bits).
    Whoever is lost has been sent the model, and charged for it; it trains nothing, sends nothing, keeps its state as
    it was, and has no part in the aggregate. They are counted in ``clients_late`` and ``clients_dropped``.

    A round in which all answer takes ``max_i T_i``. One that has lost somebody takes ``max(deadline, max_i T_i)`` over
    those that have answered: the server waits until the deadline in vain; without a deadline it is told at once of
    those that drop out, and takes ``max_i T_i``. A round that has lost everybody takes the deadline (0 without one),
    and moves nothing.

    With ``FastestParticipation`` and its like those that drop out are never among the first to answer: others take
    their places, and the round ends with the last answer that is needed.

    Args:
        speeds: what T_i is, communication included.
        deadline: seconds for which the server waits; none for as long as it takes.
        dropout: p_i: one probability for all clients, or a list; independent from client to client and round to round.

    Raises:
        ValueError: a value is out of range, or the list has not as many as clients.
    """

    def __init__(
        self,
        speeds: Speeds = lazy_default(ExponentialSpeeds),
        deadline: PositiveFloat | None = None,
        dropout: float | list[float] = 0.0,
    ) -> None:
        super().__init__()
        if deadline is not None:
            check_number("Unreliable", "deadline", deadline, above=0)
        for probability in dropout if isinstance(dropout, list) else [dropout]:
            check_number("Unreliable", "dropout", probability, least=0)
            if probability > 1:
                raise ValueError(f"`dropout={probability}` of Unreliable is a probability and must be at most 1.")
        if deadline is None and dropout in (0, []):
            raise ValueError("Unreliable loses nobody: give it a `deadline`, or a `dropout` above 0.")
        self.speeds = fresh_default(speeds)
        if not isinstance(self.speeds, Speeds):
            raise ValueError(
                f"`speeds` of Unreliable must know how long each client takes, which {type(speeds).__name__} does not."
            )
        if self.speeds.loses_clients:
            raise ValueError("`speeds` of Unreliable lose clients themselves: give both settings to one Unreliable.")
        self.deadline = deadline
        self.dropout = dropout

    @property
    @override
    def loses_clients(self) -> bool:
        return True

    @override
    def prepare(self, workload: Workload) -> None:
        super().prepare(workload)
        self.speeds.prepare(workload)

    @override
    def check(self, num_clients: int) -> None:
        self.speeds.check(num_clients)
        if isinstance(self.dropout, list) and len(self.dropout) != num_clients:
            raise ValueError(
                f"`dropout` of Unreliable lists {len(self.dropout)} probabilities, but there are {num_clients} clients."
            )

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        """Seconds that each client computes; infinite for one that drops out."""
        seconds = self.speeds.compute_seconds(clients, round_number, seed)
        return torch.where(self.drops_out(clients, round_number, seed), math.inf, seconds)

    @override
    def client_times(
        self, clients: Tensor, bits: Tensor | None, round_number: int, seed: int, down_bits: Tensor | None = None
    ) -> ClientTimes:
        times = self.speeds.client_times(clients, bits, round_number, seed, down_bits)
        compute = torch.where(self.drops_out(clients, round_number, seed), math.inf, times.compute)
        return ClientTimes(times.download, compute, times.upload)

    def drops_out(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        """Whether each client [M] drops out of a round, [M] bool."""
        chances = [self.dropout[i] for i in clients.tolist()] if isinstance(self.dropout, list) else self.dropout
        drawn = uniform(client_keys(clients, seed, "dropout", round_number), 1, torch.float64).squeeze(1)
        return drawn < torch.tensor(chances, dtype=torch.float64)

    @override
    def answers(self, clients: Tensor, round_number: int, seed: int) -> Answers:
        seconds = self.client_seconds(clients, None, round_number, seed)
        is_dropped = seconds.isinf()
        is_late = ~is_dropped & (seconds > (math.inf if self.deadline is None else self.deadline))
        return Answers(clients[~is_dropped & ~is_late], clients[is_late], clients[is_dropped])

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
        seconds = self.speeds.client_seconds(clients, bits, round_number, seed, down_bits)
        waited = self.deadline if num_lost and self.deadline is not None else 0.0
        return {"time": max([float(waited), *seconds.tolist()])}
