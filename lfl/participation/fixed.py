"""Participants by a given schedule."""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.participation.base import Participation


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
