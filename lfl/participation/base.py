"""Who takes part in a round: what all choices share."""

from abc import ABC, abstractmethod

from torch import Tensor

from lfl.system import System


class Participation(ABC):
    """Chooses the clients of a round; the choice is a function of (seed, round) alone.

    Attributes:
        system: the trainer's simulated system, for choices that depend on how fast clients are.
        client_sizes: number of training examples of each client [N], from the start of a run on; a client without any
            is left out of a round, whoever chose it.
    """

    system: System | None = None
    client_sizes: Tensor | None = None

    def invited(self, chosen: Tensor, round_number: int, num_clients: int, seed: int) -> Tensor:
        """Ids of the clients that are sent the model: the participants ``chosen``, unless some are not waited for."""
        del round_number, num_clients, seed
        return chosen

    @abstractmethod
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        """Ids of the participants, ascending and distinct (int64, CPU)."""

    def holds(self, rounds: int) -> bool:
        """Whether the participants stay the same within each period of ``rounds`` rounds, counted from round 1."""
        del rounds
        return False

    def count(self, num_clients: int) -> int | None:
        """The number of participants (M), where it is the same in every round; None where it is not."""
        del num_clients
        return None

    @abstractmethod
    def check(self, num_clients: int) -> None:
        """Refuse settings that do not fit the number of clients; raises ValueError."""
