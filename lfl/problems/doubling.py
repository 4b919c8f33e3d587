"""The points at which to double the participants: Lemma B.1 of SRPFL's theory.

"Straggler-Resilient Personalized Federated Learning", Theorem 4.7 and Appendix B. With n of N clients a round takes
``E T_(n) + C`` and moves the distance from the optimal representation by

    dist+ <= dist sqrt(1 - a) + a / sqrt(n/n_0 (1 - a)),

so that few clients make fast rounds, but stall at a large distance. (Text versions of the paper have lost the square
roots.)
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise


def fastest_seconds(count: int, num_clients: int, rate: float = 1.0) -> float:
    """Expected time E T_(n) of the n-th fastest (n = ``count``) of N clients with T_i from Exp(rate), in seconds."""
    return sum(1 / i for i in range(num_clients - count + 1, num_clients + 1)) / rate


@dataclass(frozen=True)
class DoublingPoints:
    """The distances at which doubling the number of clients pays, and the time that doubling saves.

    Attributes:
        contraction: a in (0, 1), the share of the squared distance that a round removes.
        initial: number of clients in the first stage (n_0).
        num_clients: number of clients in the last stage (N).
        communication: seconds of communication in every round (C).
        rate: rate lambda of the exponentially distributed T_i.
        start: the distance before the first round.
        first_floor: the distance at which n_0 clients stall; by default the theorem's, which is 2 or more and so above
            any distance.

    Raises:
        ValueError: a setting is out of its range.

    Example:
        >>> points = DoublingPoints(0.02, 4, 1024, communication=0.5)
        >>> points.whole_rounds(target=1.2 * points.floors[-1])
        [0, 0, 0, 0, 0, 41, 130, 314, 88]
    """

    contraction: float
    initial: int
    num_clients: int
    communication: float = 0.0
    rate: float = 1.0
    start: float = 1.0
    first_floor: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.contraction < 1:
            raise ValueError(f"`contraction={self.contraction}` must be in (0, 1).")
        if not 1 <= self.initial <= self.num_clients:
            raise ValueError(f"`initial={self.initial}` must be in [1, {self.num_clients}], the number of clients.")

    @property
    def factor(self) -> float:
        """``sqrt(1 - a)``: a round multiplies the distance from the floor by this."""
        return math.sqrt(1 - self.contraction)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of clients of each stage r = 0, 1, ...: ``min(2^r n_0, N)``, up to N."""
        doublings = math.ceil(math.log2(self.num_clients / self.initial))
        return [min(2**r * self.initial, self.num_clients) for r in range(doublings + 1)]

    @cached_property
    def seconds(self) -> list[float]:
        """Expected seconds E T_(n) of a round in each stage, without communication."""
        return [fastest_seconds(size, self.num_clients, self.rate) for size in self.sizes]

    @cached_property
    def floors(self) -> list[float]:
        """The distance F_r at which each stage stalls."""
        # The fixed point of the recursion for n = n_0: F = q F + a / q with q = sqrt(1 - a). It falls as 1 / sqrt(n).
        theorem = self.contraction / (self.factor * (1 - self.factor))
        first = theorem if self.first_floor is None else self.first_floor
        return [first * math.sqrt(self.initial / size) for size in self.sizes]

    @cached_property
    def points(self) -> list[float]:
        """The largest distance X_r at which stage r makes the most progress per second; X_0 is infinite.

        Equation (204) for stages of any sizes, ``X_{r+1} = F_r (1 + (E T_r + C) (1 - q) / (E T_{r+1} - E T_r))`` with
        ``q = F_{r+1} / F_r``, which is ``1 / sqrt(2)`` where the size is doubled.
        """
        points = [math.inf]
        stages = zip(self.floors, self.seconds, strict=True)
        for (floor, seconds), (next_floor, next_seconds) in pairwise(stages):
            ratio = (seconds + self.communication) * (1 - next_floor / floor) / (next_seconds - seconds)
            points.append(floor * (1 + ratio))
        return points

    def rounds_between(self, stage: int, start: float, end: float) -> float:
        """Rounds that a stage needs from one distance to another, a real number; 0 if ``start`` is not above ``end``.

        Raises:
            ValueError: the stage stalls before ``end``.
        """
        floor = self.floors[stage]
        if end <= floor:
            raise ValueError(f"{self.sizes[stage]} clients stall at a distance of {floor:.3g}, before {end:.3g}.")
        return 0.0 if start <= end else math.log((start - floor) / (end - floor)) / -math.log(self.factor)

    def rounds(self, target: float) -> list[float]:
        """Rounds t_r of each stage until the distance is ``target``, as real numbers (equation 203)."""
        # The stages whose points lie above the start are skipped: they have zero rounds.
        ends = [*self.points[1:], target]
        starts = [self.start, *(min(self.start, end) for end in ends[:-1])]
        return [self.rounds_between(r, start, end) for r, (start, end) in enumerate(zip(starts, ends, strict=True))]

    def whole_rounds(self, target: float) -> list[int]:
        """``rounds_per_stage`` for DoublingParticipation: a stage ends with the first round that passes its point."""
        distance, counts = self.start, []
        for stage, end in enumerate([*self.points[1:], target]):
            counts.append(math.ceil(self.rounds_between(stage, distance, end)))
            distance = self._after(stage, distance, counts[-1])
        return counts

    def srpfl_seconds(self, target: float) -> float:
        """Expected seconds until the distance is ``target``, with doubling."""
        stages = zip(self.whole_rounds(target), self.seconds, strict=True)
        return sum(count * (seconds + self.communication) for count, seconds in stages)

    def fedrep_seconds(self, target: float) -> float:
        """Expected seconds until the distance is ``target``, with all N clients in every round."""
        count = math.ceil(self.rounds_between(len(self.sizes) - 1, self.start, target))
        return count * (self.seconds[-1] + self.communication)

    def speedup(self, target: float) -> float:
        """Expected time with all clients over expected time with doubling."""
        return self.fedrep_seconds(target) / self.srpfl_seconds(target)

    def _after(self, stage: int, distance: float, rounds: int) -> float:
        """The distance after ``rounds`` rounds of a stage that begins at ``distance``."""
        floor = self.floors[stage]
        return floor + (distance - floor) * self.factor**rounds
