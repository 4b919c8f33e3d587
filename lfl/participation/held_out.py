"""Clients that take part in no round: they are new to the final model."""

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number, fresh_default, lazy_default
from lfl.participation.base import Participation
from lfl.participation.drawn import UniformParticipation
from lfl.participation.fixed import FixedParticipation
from lfl.randomness import derive_seed
from lfl.system import Speeds


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
        self.is_late = self.participation.is_late
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

    @override
    def sent_in(self, clients: Tensor, round_number: int, num_clients: int, seed: int) -> Tensor | None:
        joining = self._joining(num_clients, seed)
        places = torch.searchsorted(joining, clients)
        return self._rule_of(joining).sent_in(places, round_number, len(joining), seed)

    @override
    def awaited(self, round_number: int, num_clients: int, seed: int) -> list[int]:
        joining = self._joining(num_clients, seed)
        return self._rule_of(joining).awaited(round_number, len(joining), seed)

    @override
    def seconds(
        self, round_number: int, num_clients: int, seed: int, bits: Tensor, down_bits: Tensor
    ) -> dict[str, float] | None:
        joining = self._joining(num_clients, seed)
        return self._rule_of(joining).seconds(round_number, len(joining), seed, bits, down_bits)

    @override
    def metrics(self, round_number: int, num_clients: int, seed: int) -> dict[str, float]:
        joining = self._joining(num_clients, seed)
        return self._rule_of(joining).metrics(round_number, len(joining), seed)

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
        self.participation.client_sizes = None if self.client_sizes is None else self.client_sizes[joining]
        return self.participation


class _SpeedsOf(Speeds):
    """The speeds of some clients, by their places in ``ids``."""

    def __init__(self, system: Speeds, ids: Tensor) -> None:
        super().__init__(system.communication)
        self._system, self._ids = system, ids

    @override
    def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
        return self._system.compute_seconds(self._ids[clients], round_number, seed)

    @override
    def client_seconds(
        self, clients: Tensor, bits: Tensor | None, round_number: int, seed: int, down_bits: Tensor | None = None
    ) -> Tensor:
        return self._system.client_seconds(self._ids[clients], bits, round_number, seed, down_bits)
