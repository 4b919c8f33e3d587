"""The base of simulated systems: they turn a round into simulated seconds, and may lose clients on the way."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class Workload:
    """All that a system may know of a run before its first round.

    Attributes:
        sizes: training examples of each client [N], int64.
        examples: a function of client ids [M], round number and seed to the numbers of examples that these clients go
            through in that round [M], int64: passes times size, or steps times batch.
        label_counts: a function to each client's numbers of training examples of each class [N, K]; raises ValueError
            where the data has no class labels.
        model_bits: bits of the whole model, uncompressed.
    """

    sizes: Tensor
    examples: Callable[[Tensor, int, int], Tensor]
    label_counts: Callable[[], Tensor]
    model_bits: float


class Answers(NamedTuple):
    """The ids, ascending, of the clients that the server waits for, by whether the round gets their answers.

    Attributes:
        on_time: clients that answer, and are trained.
        late: clients that would answer after the deadline.
        dropped: clients that never answer.
    """

    on_time: Tensor
    late: Tensor
    dropped: Tensor

    @classmethod
    def of_all(cls, clients: Tensor) -> "Answers":
        """The answers where nobody is late or drops out."""
        return cls(clients, clients[:0], clients[:0])


class System(ABC):
    """Turns a round into simulated seconds.

    Attributes:
        workload: what is known of the run; None before one has begun.
    """

    workload: Workload | None = None

    @property
    def loses_clients(self) -> bool:
        """Whether clients that take part may be late or drop out."""
        return False

    def prepare(self, workload: Workload) -> None:
        """Learn of the clients of a run, before ``check``."""
        self.workload = workload

    def check(self, num_clients: int) -> None:  # noqa: B027  # optional
        """Refuse settings that do not fit the number of clients; raises ValueError."""

    def answers(self, clients: Tensor, round_number: int, seed: int) -> Answers:
        """Tell which of the clients [M] that a round waits for will answer; a function of (seed, round, client).

        It is asked before anybody is trained: those that are late or drop out are sent the model, and do nothing.
        """
        del round_number, seed
        return Answers.of_all(clients)

    def client_seconds(
        self, clients: Tensor, bits: Tensor | None, round_number: int, seed: int, down_bits: Tensor | None = None
    ) -> Tensor:
        """Seconds from the download to the answer of each client alone, float64 [M].

        Args:
            clients: ids [M].
            bits: bits that each of them sends [M]; None for what is expected, before they are known.
            round_number: counted from 1, or the number of each client's piece of work.
            seed: seed of the run.
            down_bits: bits that each of them receives [M]; None for what is expected.

        Raises:
            ValueError: the system knows only how long a round takes.
        """
        raise ValueError(
            f"{type(self).__name__} knows how long a round takes, and not a client: use a `trainer.system` that knows "
            "the clients' speeds, such as `lfl.system.ExponentialSpeeds`."
        )

    @abstractmethod
    def round_seconds(
        self,
        clients: Tensor,
        bits: Tensor,
        round_number: int,
        seed: int,
        down_bits: Tensor | None = None,
        num_lost: int = 0,
    ) -> dict[str, float]:
        """Simulated seconds of a round, by name; their sums over rounds are logged as ``sim/NAME``.

        Args:
            clients: ids of the participants [M]; there may be none where some were lost.
            bits: bits that each of them sent [M], float64, by the ledger.
            round_number: counted from 1.
            seed: seed of the run.
            down_bits: bits that each of them received [M], float64, by the ledger; None for what is expected.
            num_lost: how many others were waited for in vain: those that were late or dropped out.
        """
