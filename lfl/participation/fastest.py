"""The first clients that answer: a fixed number of them, or twice as many from stage to stage."""

import itertools
from typing import Literal

from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice, check_number
from lfl.participation.base import Participation
from lfl.participation.drawn import UniformParticipation
from lfl.system import Speeds


class FastestParticipation(Participation):
    """The fastest n of N sampled clients: all N are sent the model, and the server goes on when n have answered.

    Clients without examples are not among the N, and those that drop out of the round not among the n. Needs a
    ``trainer.system`` that knows how fast clients are, such as ``lfl.system.ExponentialSpeeds``.

    Args:
        fastest: n, the number of answers that the server waits for.
        clients_per_round: N: a whole number of clients, or a fraction of all as a float in (0, 1].
        rounds_per_draw: rounds for which the N stay.

    Raises:
        ValueError: a value is out of range, or the system knows no client's speed.
    """

    def __init__(
        self,
        fastest: PositiveInt = 10,
        clients_per_round: int | float = 1.0,
        rounds_per_draw: PositiveInt = 1,
    ) -> None:
        check_number("FastestParticipation", "fastest", fastest, least=1, whole=True)
        self.fastest = fastest
        self.clients_per_round = clients_per_round
        self.rounds_per_draw = rounds_per_draw
        self._sampling = UniformParticipation(clients_per_round, rounds_per_draw)

    @override
    def check(self, num_clients: int) -> None:
        self._sampling.check(num_clients)
        if not isinstance(self.system, Speeds):
            raise ValueError(
                f"{type(self).__name__} waits for the fastest clients: it needs a `trainer.system` that knows their "
                "speeds, such as `lfl.system.ExponentialSpeeds`."
            )
        self._check_number(num_clients)

    def _check_number(self, num_clients: int) -> None:
        sampled = self._sampling.count(num_clients)
        if self.fastest > sampled:
            raise ValueError(
                f"`fastest={self.fastest}` of FastestParticipation, but it samples {sampled} of {num_clients} clients: "
                "lower it, or raise `clients_per_round`."
            )

    def sampled(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        """Ids of the N clients that are sent the model in a round, ascending."""
        return self._sampling.select(round_number, num_clients, seed)

    def waits_for(self, round_number: int, fastest_first: Tensor) -> int:
        """The number of answers that the server waits for, of sampled clients that are sorted by their time."""
        del round_number, fastest_first
        return int(self.fastest)

    @override
    def invited(self, chosen: Tensor, round_number: int, num_clients: int, seed: int) -> Tensor:
        return self.sampled(round_number, num_clients, seed)

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        assert self.system is not None
        sampled = self.sampled(round_number, num_clients, seed)
        if self.client_sizes is not None:
            sampled = sampled[self.client_sizes[sampled] > 0]
        seconds = self.system.client_seconds(sampled, None, round_number, seed)
        # Stable: of equal times the smallest ids. Clients that drop out have infinite times, and come last.
        fastest_first = sampled[seconds.argsort(stable=True)]
        return fastest_first[: self.waits_for(round_number, fastest_first)].sort().values


class DoublingParticipation(FastestParticipation):
    """The fastest n of N sampled clients, doubled from stage to stage: ``n = min(2^r n_0, N)``, r = 0, 1, ...

    "Straggler-Resilient Personalized Federated Learning", Algorithm 1; with the whole model shared, and all clients
    sampled, it is FLANP. All N sampled clients are sent the model; the server goes on when the first n have answered.
    Clients without examples are not among the N, and those that drop out of the round not among the n. Needs a
    ``trainer.system`` that knows how fast clients are, such as ``lfl.system.ExponentialSpeeds``.

    With ``doubles: examples`` it is their examples that double (Appendix C, for clients of very different sizes): n is
    the least number with ``sum_{i <= n} m_i >= 2^r sum_{i <= n_0} m_i``, clients sorted by their times.

    Args:
        clients_per_round: N: a whole number of clients, or a fraction of all as a float in (0, 1].
        initial: number of participants in the first stage (n_0).
        rounds_per_stage: rounds before n is doubled; a list gives the length of each stage, of which the last one
            never ends; none where a callback ends stages, such as ``lfl.callbacks.GradientNormStages``.
        resample: whether the N are drawn anew in every ``round``, or in every ``stage``, as in the paper's algorithm
            (its Remark 3.2 allows both).
        doubles: the number of ``clients``, or that of their ``examples``.

    Attributes:
        stages_ended: number of stages that a callback has ended, where ``rounds_per_stage`` is none.
    """

    def __init__(
        self,
        clients_per_round: int | float = 1.0,
        initial: PositiveInt = 10,
        rounds_per_stage: PositiveInt | list[int] | None = 10,
        resample: Literal["round", "stage"] = "round",
        doubles: Literal["clients", "examples"] = "clients",
    ) -> None:
        check_number("DoublingParticipation", "initial", initial, least=1, whole=True)
        if isinstance(rounds_per_stage, list) and rounds_per_stage:
            for rounds in rounds_per_stage:
                check_number("DoublingParticipation", "rounds_per_stage", rounds, least=0, whole=True)
        elif rounds_per_stage is not None:
            check_number("DoublingParticipation", "rounds_per_stage", rounds_per_stage, least=1, whole=True)
        check_choice("DoublingParticipation", "resample", resample, ("round", "stage"))
        check_choice("DoublingParticipation", "doubles", doubles, ("clients", "examples"))
        super().__init__(initial, clients_per_round)
        self.initial = initial
        self.rounds_per_stage = rounds_per_stage
        self.resample = resample
        self.doubles = doubles
        self.stages_ended = 0

    @override
    def _check_number(self, num_clients: int) -> None:
        """Any ``initial`` will do: n is at most N."""

    def stage(self, round_number: int) -> int:
        """Number of times that n was doubled before a round (r)."""
        if self.rounds_per_stage is None:
            return self.stages_ended
        if isinstance(self.rounds_per_stage, int):
            return (round_number - 1) // int(self.rounds_per_stage)
        ends = itertools.accumulate(self.rounds_per_stage[:-1])
        return sum(round_number > end for end in ends)

    @override
    def sampled(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        draw = round_number if self.resample == "round" else 1 + self.stage(round_number)
        return super().sampled(draw, num_clients, seed)

    @override
    def waits_for(self, round_number: int, fastest_first: Tensor) -> int:
        # 2^62 is more than any N; without the limit a long run would compute with ever larger integers.
        factor: int = 2 ** min(self.stage(round_number), 62)
        if self.doubles == "clients":
            return min(int(self.initial) * factor, len(fastest_first))
        assert self.client_sizes is not None
        totals = self.client_sizes[fastest_first].cumsum(0)
        wanted = factor * int(totals[: self.initial][-1:].sum())  # a whole number of Python's, which may be large
        return min(1 + int((totals < min(wanted, 2**62)).sum()), len(fastest_first))
