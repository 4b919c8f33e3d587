"""Clients that are drawn at random, and all of them."""

from typing import Literal

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.participation.base import Participation
from lfl.randomness import derive_seed


class UniformParticipation(Participation):
    """Clients drawn uniformly without replacement.

    Args:
        clients_per_round: a whole number of clients, or a fraction of all as a float in (0, 1]; auto for ten, or all
            where there are fewer.
        rounds_per_draw: rounds for which the drawn clients stay.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self, clients_per_round: int | float | Literal["auto"] = "auto", rounds_per_draw: PositiveInt = 1
    ) -> None:
        if clients_per_round != "auto":
            check_number("UniformParticipation", "clients_per_round", clients_per_round)
        if isinstance(clients_per_round, float) and not 0 < clients_per_round <= 1:
            raise ValueError(
                f"`clients_per_round={clients_per_round}` is a fraction of all clients and must be in (0, 1]; "
                "give a whole number, without a point, for a number of clients."
            )
        if isinstance(clients_per_round, int) and clients_per_round < 1:
            raise ValueError(f"`clients_per_round={clients_per_round}` must be at least 1.")
        check_number("UniformParticipation", "rounds_per_draw", rounds_per_draw, least=1, whole=True)
        self.clients_per_round = clients_per_round
        self.rounds_per_draw = rounds_per_draw

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
        draw = (round_number - 1) // self.rounds_per_draw
        draws = np.random.default_rng(derive_seed(seed, "participation", int(draw) + 1))
        # numpy, as torch.randperm would need time and memory for all N: this is O(count), also for 1e6 clients.
        chosen = draws.choice(num_clients, self.count(num_clients), replace=False, shuffle=False)
        return torch.from_numpy(np.sort(chosen))

    @override
    def count(self, num_clients: int) -> int:
        if self.clients_per_round == "auto":
            return min(10, num_clients)
        if isinstance(self.clients_per_round, float):
            return max(1, round(self.clients_per_round * num_clients))
        return self.clients_per_round


class PoissonParticipation(Participation):
    """Every client takes part in a round with the same probability, by a coin of its own.

    The number of participants is binomial, and may be zero: then nothing moves in that round. It is the sampling that
    differential privacy is best understood for.

    Args:
        probability: of each client in each round (q), in (0, 1].

    Raises:
        ValueError: the probability is out of range.
    """

    def __init__(self, probability: float) -> None:
        check_number("PoissonParticipation", "probability", probability, above=0)
        if probability > 1:
            raise ValueError(f"`probability={probability}` of PoissonParticipation must be at most 1.")
        self.probability = probability

    @override
    def check(self, num_clients: int) -> None:
        pass

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        draws = np.random.default_rng(derive_seed(seed, "participation", round_number))
        # First how many, then whom: the same distribution as N coins, in time and memory for the participants alone.
        count = draws.binomial(num_clients, self.probability)
        return torch.from_numpy(np.sort(draws.choice(num_clients, count, replace=False, shuffle=False)))


class VaryingParticipation(Participation):
    """A random number of clients, drawn uniformly without replacement.

    The number M of a round is uniform between two bounds: the "M >= 20" of FLSS's Table 3, say, where clients cannot
    always join.

    Args:
        least: smallest number of participants.
        most: largest number; none for all clients.

    Raises:
        ValueError: a bound is out of range.
    """

    def __init__(self, least: PositiveInt = 1, most: PositiveInt | None = None) -> None:
        check_number("VaryingParticipation", "least", least, least=1, whole=True)
        if most is not None:
            check_number("VaryingParticipation", "most", most, least=least, whole=True)
        self.least = least
        self.most = most

    @override
    def check(self, num_clients: int) -> None:
        for name, bound in (("least", self.least), ("most", self.most)):
            if bound is not None and bound > num_clients:
                raise ValueError(
                    f"`{name}={bound}` of VaryingParticipation, but the data module has {num_clients} clients. Lower "
                    "it, or raise `data.num_clients`."
                )

    @override
    def count(self, num_clients: int) -> int | None:
        most = num_clients if self.most is None else self.most
        return most if most == self.least else None

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        draws = np.random.default_rng(derive_seed(seed, "participation", round_number))
        count = draws.integers(self.least, num_clients if self.most is None else self.most, endpoint=True)
        return torch.from_numpy(np.sort(draws.choice(num_clients, count, replace=False, shuffle=False)))


class FullParticipation(Participation):
    """Every client, every round."""

    @override
    def holds(self, rounds: int) -> bool:
        return True

    @override
    def count(self, num_clients: int) -> int:
        return num_clients

    @override
    def check(self, num_clients: int) -> None:
        pass

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        return torch.arange(num_clients)
