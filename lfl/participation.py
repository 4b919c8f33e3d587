"""Who takes part in a round."""

import itertools
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number, fresh_default, lazy_default
from lfl.randomness import derive_seed
from lfl.system import Speeds, System


class Participation(ABC):
    """Chooses the clients of a round; the choice is a function of (seed, round) alone.

    Attributes:
        system: the trainer's simulated system, for choices that depend on how fast clients are.
    """

    system: System | None = None

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

    @property
    def rule(self) -> "Participation":
        """How those clients are drawn that may take part."""
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


class HeldOutParticipation(Participation):
    """Keeps some clients out of all rounds; of the others, those take part that another participation draws.

    Those held out are new to the final model: ``lfl.callbacks.ClientEvaluation(scopes=["new"])`` lets each fit its own
    part of it, such as a head, on its training examples, and evaluates it ("Straggler-Resilient Personalized Federated
    Learning", Remark 4.8).

    Args:
        held_out_clients: their ids, or their share of all clients as a float in (0, 1), drawn by the seed.
        participation: draws of the others, N - H in number, as if there were no more.

    Raises:
        ValueError: a share is out of range, or a schedule names its clients itself.
    """

    def __init__(
        self,
        held_out_clients: float | list[int],
        participation: Participation = lazy_default(UniformParticipation),
    ) -> None:
        self.held_out_clients = held_out_clients
        self.participation = fresh_default(participation)
        if isinstance(self.participation, FixedParticipation | HeldOutParticipation):
            raise ValueError(
                f"HeldOutParticipation counts the clients anew, and {type(self.participation).__name__} names them by "
                "their ids: leave those that are to be new out of it, or draw by another participation."
            )
        if not isinstance(held_out_clients, list):
            check_number("HeldOutParticipation", "held_out_clients", held_out_clients, above=0)
            if held_out_clients >= 1:
                raise ValueError(
                    f"`held_out_clients={held_out_clients}` is a share of all clients and must be below 1; give a list "
                    "of ids for certain clients."
                )

    @property
    @override
    def rule(self) -> Participation:
        return self.participation

    @override
    def held_out(self, num_clients: int, seed: int) -> Tensor:
        if isinstance(self.held_out_clients, list):
            return torch.tensor(sorted(self.held_out_clients), dtype=torch.int64)
        draws = np.random.default_rng(derive_seed(seed, "held out"))
        chosen = draws.choice(num_clients, self._number(num_clients), replace=False, shuffle=False)
        return torch.from_numpy(np.sort(chosen))

    @override
    def check(self, num_clients: int) -> None:
        given = self.held_out_clients
        ids = given if isinstance(given, list) else []
        if len(set(ids)) < len(ids) or any(not 0 <= client < num_clients for client in ids):
            raise ValueError(
                f"`held_out_clients={given}` must name different clients, with ids from 0 to {num_clients - 1}."
            )
        if not 0 < self._number(num_clients) < num_clients:
            raise ValueError(
                f"`held_out_clients={given}` holds out {self._number(num_clients)} of {num_clients} clients: hold out "
                "at least one, and not all."
            )
        self.participation.system = self.system
        self.participation.check(num_clients - self._number(num_clients))

    @override
    def count(self, num_clients: int) -> int | None:
        return self.participation.count(num_clients - self._number(num_clients))

    @override
    def holds(self, rounds: int) -> bool:
        return self.participation.holds(rounds)

    @override
    def select(self, round_number: int, num_clients: int, seed: int) -> Tensor:
        joining = self._joining(num_clients, seed)
        return joining[self._rule_of(joining).select(round_number, len(joining), seed)]

    @override
    def invited(self, chosen: Tensor, round_number: int, num_clients: int, seed: int) -> Tensor:
        joining = self._joining(num_clients, seed)
        places = torch.searchsorted(joining, chosen)
        return joining[self._rule_of(joining).invited(places, round_number, len(joining), seed)]

    def _number(self, num_clients: int) -> int:
        given = self.held_out_clients
        return len(given) if isinstance(given, list) else round(given * num_clients)

    def _joining(self, num_clients: int, seed: int) -> Tensor:
        """Ids of the clients that may take part, ascending."""
        may_join = torch.ones(num_clients, dtype=torch.bool)
        may_join[self.held_out(num_clients, seed)] = False
        return may_join.nonzero().squeeze(1)

    def _rule_of(self, joining: Tensor) -> Participation:
        """The other participation, which sees the speeds of clients ``joining`` by their places among these."""
        system = self.system
        self.participation.system = _SpeedsOf(system, joining) if isinstance(system, Speeds) else system
        return self.participation


class _SpeedsOf(Speeds):
    """The speeds of some clients, by their places in ``ids``."""

    def __init__(self, system: Speeds, ids: Tensor) -> None:
        super().__init__(system.communication)
        self._system, self._ids = system, ids

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        return self._system.compute_seconds(self._ids[clients], round_number, seed)
