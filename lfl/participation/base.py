"""Choices of the clients that take part in a round: what all of them share."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from lfl.system import System


class Participation(ABC):
    """Chooses the clients of a round; the choice is a function of (seed, round) alone.

    Attributes:
        system: the trainer's simulated system, for choices that depend on how fast clients are.
        client_sizes: number of training examples of each client [N], from the start of a run on; a client without any
            is left out of a round, whoever chose it.
        is_late: whether clients may report in another round than the one in which they were sent the model.
    """

    system: System | None = None
    client_sizes: Tensor | None = None
    is_late: bool = False

    def invited(self, chosen: Tensor, round_number: int, num_clients: int, seed: int) -> Tensor:
        """Ids of the clients that are sent the model: the participants ``chosen``, unless some are not waited for."""
        del round_number, num_clients, seed
        return chosen

    def sent_in(self, clients: Tensor, round_number: int, num_clients: int, seed: int) -> Tensor | None:
        """The rounds in which participants ``clients`` [M] were sent the model [M] (int64); None for this one."""
        del clients, round_number, num_clients, seed
        return None

    def awaited(self, round_number: int, num_clients: int, seed: int) -> list[int]:
        """The rounds of whose model clients are still at work when a round ends, where they may be late."""
        del round_number, num_clients, seed
        return []

    def seconds(
        self, round_number: int, num_clients: int, seed: int, bits: Tensor, down_bits: Tensor
    ) -> dict[str, float] | None:
        """Simulated seconds of a round, by name; None for those of the system, which waits for all participants.

        Args:
            round_number: counted from 1.
            num_clients: N.
            seed: seed of the run.
            bits: bits that each participant sent, float64, by the ledger.
            down_bits: bits that each client that was sent the model received, float64, by the ledger.
        """
        del round_number, num_clients, seed, bits, down_bits
        return None

    def metrics(self, round_number: int, num_clients: int, seed: int) -> dict[str, float]:
        """Numbers of a round that are logged, by name."""
        del round_number, num_clients, seed
        return {}

    @abstractmethod
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        """Ids of the participants, ascending and distinct (int64, CPU)."""

    def holds(self, rounds: int) -> bool:
        """Whether the participants stay the same within each period of ``rounds`` rounds, counted from round 1."""
        del rounds
        return False

    @property
    def rule(self) -> "Participation":
        """The rule by which those clients are drawn that may take part."""
        return self

    def held_out(self, num_clients: int, seed: int) -> Tensor:
        """Ids of the clients that never take part, ascending (int64, CPU)."""
        del num_clients, seed
        return torch.empty(0, dtype=torch.int64)

    def count(self, num_clients: int) -> int | None:
        """The number of participants (M), where it is the same in every round; None where it is not."""
        del num_clients
        return None

    @abstractmethod
    def check(self, num_clients: int) -> None:
        """Refuse settings that do not fit the number of clients; raises ValueError."""
