"""Who takes part in a round."""

import itertools
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.events import Arrivals, EventQueue
from lfl.randomness import derive_seed
from lfl.system import Speeds, System


class Participation(ABC):
    """Chooses the clients of a round; the choice is a function of (seed, round) alone.

    Attributes:
        system: the trainer's simulated system, for choices that depend on how fast clients are.
        has_data: which clients have training examples [N] (bool); None where that is not known, and all may have.
        is_late: whether clients may report in another round than the one in which they were sent the model.
    """

    system: System | None = None
    has_data: Tensor | None = None
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
        self, clients: Tensor, bits: Tensor, round_number: int, num_clients: int, seed: int
    ) -> dict[str, float]:
        """Simulated seconds of a round, by name: those of the system, which waits for all participants.

        Args:
            clients: ids of the participants [M].
            bits: bits that each of them sent [M], float64.
            round_number: counted from 1.
            num_clients: N.
            seed: seed of the run.
        """
        del num_clients
        return {} if self.system is None else self.system.round_seconds(clients, bits, round_number, seed)

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

    def count(self, num_clients: int) -> int | None:
        """The number of participants (M), where it is the same in every round; None where it is not."""
        del num_clients
        return None

    @abstractmethod
    def check(self, num_clients: int) -> None:
        """Refuse settings that do not fit the number of clients; raises ValueError."""


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


class DoublingParticipation(Participation):
    """The fastest n of N sampled clients, doubled from stage to stage: ``n = min(2^r n_0, N)``, r = 0, 1, ...

    "Straggler-Resilient Personalized Federated Learning", Algorithm 1; with the whole model shared, and all clients
    sampled, it is FLANP. All N sampled clients are sent the model; the server goes on when the first n have answered.
    Needs a ``trainer.system`` that knows how fast clients are, such as ``lfl.system.ExponentialSpeeds``.

    Args:
        clients_per_round: N: a whole number of clients, or a fraction of all as a float in (0, 1].
        initial: number of participants in the first stage (n_0).
        rounds_per_stage: rounds before n is doubled; a list gives the length of each stage, of which the last one
            never ends.
    """

    def __init__(
        self,
        clients_per_round: int | float = 1.0,
        initial: PositiveInt = 10,
        rounds_per_stage: PositiveInt | list[int] = 10,
    ) -> None:
        self.clients_per_round = clients_per_round
        self.initial = initial
        self.rounds_per_stage = rounds_per_stage
        self._sampling = UniformParticipation(clients_per_round)
        check_number("DoublingParticipation", "initial", initial, least=1, whole=True)
        if isinstance(rounds_per_stage, list) and rounds_per_stage:
            for rounds in rounds_per_stage:
                check_number("DoublingParticipation", "rounds_per_stage", rounds, least=0, whole=True)
        else:
            check_number("DoublingParticipation", "rounds_per_stage", rounds_per_stage, least=1, whole=True)

    @override
    def check(self, num_clients: int) -> None:
        self._sampling.check(num_clients)
        if not isinstance(self.system, Speeds):
            raise ValueError(
                "DoublingParticipation waits for the fastest clients: it needs a `trainer.system` that knows their "
                "speeds, such as `lfl.system.ExponentialSpeeds`."
            )

    def stage(self, round_number: int) -> int:
        """Number of times that n was doubled before a round (r)."""
        if isinstance(self.rounds_per_stage, int):
            return (round_number - 1) // self.rounds_per_stage
        ends = itertools.accumulate(self.rounds_per_stage[:-1])
        return sum(round_number > end for end in ends)

    @override
    def invited(self, chosen: Tensor, round_number: int, num_clients: int, seed: int) -> Tensor:
        return self._sampling.select(round_number, num_clients, seed)

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        assert isinstance(self.system, Speeds)
        invited = self._sampling.select(round_number, num_clients, seed)
        # 2^62 is more than any N; without the limit a long run would compute with ever larger integers.
        count = min(self.initial * 2 ** min(self.stage(round_number), 62), len(invited))
        seconds = self.system.compute_seconds(invited, round_number, seed)
        return invited[seconds.argsort(stable=True)[:count]].sort().values


class FixedParticipation(Participation):
    """Participants from a given schedule, which is repeated when it ends.

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
        # A schedule that is no multiple of `rounds` would shift against the periods when it is repeated.
        starts = range(0, len(self.schedule), rounds)
        return len(self.schedule) % rounds == 0 and all(
            sorted(self.schedule[start]) == sorted(ids)
            for start in starts
            for ids in self.schedule[start : start + rounds]
        )

    @override
    def count(self, num_clients: int) -> int | None:
        counts = {len(ids) for ids in self.schedule}
        return counts.pop() if len(counts) == 1 else None

    @override
    def check(self, num_clients: int) -> None:
        outside = sorted({i for ids in self.schedule for i in ids if not 0 <= i < num_clients})
        if outside:
            raise ValueError(f"`schedule` names clients {outside}, but the ids are 0 to {num_clients - 1}.")

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        return torch.tensor(sorted(self.schedule[(round_number - 1) % len(self.schedule)]))


class AsynchronousParticipation(Participation):
    """Clients that nobody waits for: a round is a step of the server, along the next updates that arrive.

    FedAsync (Xie et al., 2019) with a buffer of 1, FedBuff (Nguyen et al., AISTATS 2022) with a larger one; what late
    updates count is the aggregator's, ``lfl.aggregation.FedAsync`` or ``FedBuff``. ``lfl.events.EventQueue`` has the
    rules: who is sent the model when, and in which order what happens at one instant. Clients train on what they were
    sent, of which the server keeps one copy for each round whose model somebody is at work on. Learning rates, amounts
    of work and random draws are those of the round in which the update arrives.

    Needs a ``trainer.system`` that knows how fast clients are, such as ``lfl.system.ExponentialSpeeds``; speeds that
    are dynamic are drawn anew whenever a client is sent the model. The events follow from seed and speeds: a run that
    is resumed goes through them again, less than a millisecond for each update, and a checkpoint holds the models only.

    Logs ``async/staleness`` and ``async/max_staleness``, the mean and the largest number of steps of the server between
    what an update started from and what it changes; ``sim/time`` is when the last update of a round arrives.

    Args:
        concurrency: number of clients at work at the same time.
        buffer: number of updates that make a step of the server (K).

    Raises:
        ValueError: ``buffer`` is larger than ``concurrency``.
    """

    is_late = True

    def __init__(self, concurrency: PositiveInt = 10, buffer: PositiveInt = 1) -> None:
        check_number("AsynchronousParticipation", "concurrency", concurrency, least=1, whole=True)
        check_number("AsynchronousParticipation", "buffer", buffer, least=1, whole=True)
        if buffer > concurrency:
            raise ValueError(
                f"`buffer={buffer}` of AsynchronousParticipation must be at most `concurrency={concurrency}`: more "
                "updates than there are clients at work cannot be waited for."
            )
        self.concurrency = concurrency
        self.buffer = buffer
        self._queue: EventQueue | None = None
        self._of: tuple[int, int] | None = None  # the number of clients and the seed that the queue is for
        self._last: Arrivals | None = None  # of its last round

    @override
    def check(self, num_clients: int) -> None:
        if not isinstance(self.system, Speeds):
            raise ValueError(
                "AsynchronousParticipation takes updates in the order in which they arrive: it needs a "
                "`trainer.system` that knows the clients' speeds, such as `lfl.system.ExponentialSpeeds`."
            )
        able = len(self._able(num_clients))
        if self.concurrency > able:
            raise ValueError(
                f"`concurrency={self.concurrency}` of AsynchronousParticipation, but {able} of the {num_clients} "
                "clients have training examples. Lower it, or raise `data.num_clients`."
            )
        self._queue = None  # system and data may be others than those of an earlier run

    @override
    def count(self, num_clients: int) -> int:
        return int(self.buffer)

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        return self._arrivals(round_number, num_clients, seed).clients

    @override
    def invited(self, chosen: Tensor, round_number: int, num_clients: int, seed: int) -> Tensor:
        return self._arrivals(round_number, num_clients, seed).invited

    @override
    def sent_in(self, clients: Tensor, round_number: int, num_clients: int, seed: int) -> Tensor:
        arrivals = self._arrivals(round_number, num_clients, seed)
        return arrivals.sent_in[torch.searchsorted(arrivals.clients, clients)]

    @override
    def awaited(self, round_number: int, num_clients: int, seed: int) -> list[int]:
        return self._arrivals(round_number, num_clients, seed).awaited

    @override
    def seconds(
        self, clients: Tensor, bits: Tensor, round_number: int, num_clients: int, seed: int
    ) -> dict[str, float]:
        return {"time": self._arrivals(round_number, num_clients, seed).seconds}

    @override
    def metrics(self, round_number: int, num_clients: int, seed: int) -> dict[str, float]:
        staleness = (round_number - self._arrivals(round_number, num_clients, seed).sent_in).double()
        return {"async/staleness": float(staleness.mean()), "async/max_staleness": float(staleness.max())}

    def _able(self, num_clients: int) -> Tensor:
        """Ids of the clients that can be sent the model: those without examples have nothing to train on."""
        return torch.arange(num_clients) if self.has_data is None else self.has_data.nonzero().squeeze(1)

    def _arrivals(self, round_number: int, num_clients: int, seed: int) -> Arrivals:
        """The events of a round, a function of (seed, round); the last ones are kept, as rounds come in order."""
        if self._queue is None or self._of != (num_clients, seed) or round_number < self._queue.round:
            system = self.system
            assert isinstance(system, Speeds)
            self._of = (num_clients, seed)
            self._queue = EventQueue(
                self._able(num_clients),
                self.concurrency,
                self.buffer,
                lambda ids, dispatch: system.dispatch_seconds(ids, dispatch, seed),
                seed,
            )
        while self._queue.round < round_number:
            self._last = self._queue.next_round()
        assert self._last is not None
        return self._last
