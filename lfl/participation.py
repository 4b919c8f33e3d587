"""Who takes part in a round."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.randomness import derive_seed


class Participation(ABC):
    """Chooses the clients of a round; the choice is a function of (seed, round) alone."""

    @abstractmethod
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        """Ids of the participants, ascending and distinct (int64, CPU)."""

    def holds(self, rounds: int) -> bool:
        """Whether the participants change only after multiples of ``rounds`` rounds."""
        del rounds
        return False

    @abstractmethod
    def check(self, num_clients: int) -> None:
        """Refuse settings that do not fit the number of clients; raises ValueError."""


class UniformParticipation(Participation):
    """Clients drawn uniformly without replacement.

    Args:
        clients_per_round: a whole number of clients, or a fraction of all as a float in (0, 1].
        rounds_per_draw: rounds for which the drawn clients stay.
    """

    def __init__(self, clients_per_round: int | float = 10, rounds_per_draw: PositiveInt = 1) -> None:
        if isinstance(clients_per_round, float) and not 0 < clients_per_round <= 1:
            raise ValueError(
                f"`clients_per_round={clients_per_round}` is a fraction of all clients and must be in (0, 1]; "
                "give a whole number, without a point, for a number of clients."
            )
        if clients_per_round < 1 and isinstance(clients_per_round, int):
            raise ValueError(f"`clients_per_round={clients_per_round}` must be at least 1.")
        self.clients_per_round, self.rounds_per_draw = clients_per_round, rounds_per_draw

    @override
    def holds(self, rounds: int) -> bool:
        return bool(self.rounds_per_draw % rounds == 0)

    @override
    def check(self, num_clients: int) -> None:
        if isinstance(self.clients_per_round, int) and self.clients_per_round > num_clients:
            raise ValueError(
                f"`clients_per_round={self.clients_per_round}` but the data module has {num_clients} clients. "
                "Lower it, or raise `data.num_clients`."
            )

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        count = self.clients_per_round
        if isinstance(count, float):
            count = max(1, round(count * num_clients))
        draw = (round_number - 1) // self.rounds_per_draw
        draws = np.random.default_rng(derive_seed(seed, "participation", int(draw) + 1))
        chosen = draws.choice(num_clients, count, replace=False, shuffle=False)  # O(count), also for 1e6 clients
        return torch.from_numpy(np.sort(chosen))


class FullParticipation(Participation):
    """Every client, every round."""

    @override
    def holds(self, rounds: int) -> bool:
        return True

    @override
    def check(self, num_clients: int) -> None:
        pass

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        return torch.arange(num_clients)


class FixedParticipation(Participation):
    """A fixed schedule, started again when it ends.

    Args:
        schedule: the client ids of round 1, of round 2, ...
    """

    def __init__(self, schedule: list[list[int]]) -> None:
        if not schedule or not all(schedule):
            raise ValueError("`schedule` must name at least one client for at least one round, and no round empty.")
        for number, ids in enumerate(schedule, 1):
            if len(set(ids)) < len(ids):
                raise ValueError(f"`schedule` names a client twice in round {number}: {ids}.")
        self.schedule = schedule

    @override
    def holds(self, rounds: int) -> bool:
        starts = range(0, len(self.schedule), rounds)
        return len(self.schedule) % rounds == 0 and all(
            sorted(self.schedule[start]) == sorted(ids)
            for start in starts
            for ids in self.schedule[start : start + rounds]
        )

    @override
    def check(self, num_clients: int) -> None:
        outside = sorted({i for ids in self.schedule for i in ids if not 0 <= i < num_clients})
        if outside:
            raise ValueError(f"`schedule` names clients {outside}, but the ids are 0 to {num_clients - 1}.")

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        return torch.tensor(sorted(self.schedule[(round_number - 1) % len(self.schedule)]))
