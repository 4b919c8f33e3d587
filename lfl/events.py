"""The order of events where nobody waits: who is sent the model when, and whose update arrives next."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lfl.randomness import derive_seed


class Arrivals(NamedTuple):
    """All that happens from one step of the server to the next one, which is a round.

    Attributes:
        clients: whose updates arrive [K], ascending.
        sent_in: the rounds in which they were sent the model [K]; this one, or earlier.
        invited: who is sent the model of this round, ascending.
        awaited: the rounds whose model somebody is still at work on at the end, ascending.
        seconds: from the end of the round before to the last arrival.
    """

    clients: Tensor
    sent_in: Tensor
    invited: Tensor
    awaited: list[int]
    seconds: float


class _Flight(NamedTuple):
    """A client at work. Flights are ordered by arrival; of equal times, the one that was sent the model first leads."""

    arrival: float
    place: int  # among all flights
    client: int  # its place among the clients
    sent_in: int


class EventQueue:
    """Clients at work on models of different age, in the order in which their updates will arrive.

    At time zero the model is sent to ``concurrency`` clients. Whenever an update arrives, another client is sent the
    model as it is then, drawn uniformly from those that are idle. The server steps when ``buffer`` updates have
    arrived, which ends a round. What happens at one instant has an order: first all updates that are due arrive, and
    the server steps along those that are complete; only then clients are drawn.

    A client whose update waits in the buffer is not idle: it would come twice in one round. Where nobody is idle, the
    next client is drawn when the server has stepped.

    Args:
        clients: ids of the clients that can work, ascending; at least ``concurrency``.
        concurrency: number of clients at work at the same time.
        buffer: number of updates that make a step; at most ``concurrency``.
        seconds: from ids [n] and a number k, how long each client takes when it is sent the model for the k-th time,
            float64 [n].
        seed: of the draws.

    Attributes:
        round: number of the last round that has ended.
        now: seconds from the beginning to its end.
    """

    def __init__(
        self, clients: Tensor, concurrency: int, buffer: int, seconds: Callable[[Tensor, int], Tensor], seed: int
    ) -> None:
        self._clients = clients
        self._buffer = buffer
        self._seconds = seconds
        self._seed = seed
        self._flights: list[_Flight] = []
        self._busy: set[int] = set()  # places of the clients that are at work, or whose update waits in the buffer
        self._vacant = concurrency
        self._times_sent: dict[int, int] = {}
        self._draws = 0
        self._started = 0
        self.round = 0
        self.now = 0.0

    def next_round(self) -> Arrivals:
        """Return what happens until the server steps again."""
        self.round += 1
        before = self.now
        invited: list[int] = []
        arrived: list[_Flight] = []
        while len(arrived) < self._buffer:
            is_another_due = bool(self._flights) and self._flights[0].arrival <= self.now
            if self._vacant and not is_another_due:
                invited += self._send()
            flight = heapq.heappop(self._flights)
            self.now = flight.arrival
            self._vacant += 1
            arrived.append(flight)
        self._busy.difference_update(flight.client for flight in arrived)
        arrived.sort(key=lambda flight: flight.client)
        return Arrivals(
            self._clients[[flight.client for flight in arrived]],
            torch.tensor([flight.sent_in for flight in arrived]),
            self._clients[torch.tensor(sorted(invited), dtype=torch.int64)],
            sorted({flight.sent_in for flight in self._flights}),
            self.now - before,
        )

    def _send(self) -> list[int]:
        """Send the model to as many idle clients as places are vacant, or all there are; returns their places."""
        idle = len(self._clients) - len(self._busy)
        count = min(self._vacant, idle)
        if not count:
            return []
        self._draws += 1
        draws = np.random.default_rng(derive_seed(self._seed, "dispatch", self._draws))
        ranks = draws.choice(idle, count, replace=False, shuffle=False)
        # The rank-th idle client has as many busy ones before it as have at most that many idle ones before them.
        busy = np.sort(np.fromiter(self._busy, dtype=np.int64, count=len(self._busy)))
        drawn: list[int] = np.sort(ranks + np.searchsorted(busy - np.arange(len(busy)), ranks, side="right")).tolist()
        for client, seconds in zip(drawn, self._durations(drawn), strict=True):
            heapq.heappush(self._flights, _Flight(self.now + seconds, self._started, client, self.round))
            self._started += 1
        self._busy.update(drawn)
        self._vacant -= count
        return drawn

    def _durations(self, drawn: list[int]) -> list[float]:
        """The seconds that clients at these places take for what they are sent now."""
        for client in drawn:
            self._times_sent[client] = self._times_sent.get(client, 0) + 1
        numbers = [self._times_sent[client] for client in drawn]
        found = [0.0] * len(drawn)
        for number in set(numbers):  # one call for all that are sent the model for the k-th time
            rows = [row for row, own in enumerate(numbers) if own == number]
            ids = self._clients[[drawn[row] for row in rows]]
            for row, seconds in zip(rows, self._seconds(ids, number).tolist(), strict=True):
                if not 0 <= seconds < math.inf:
                    client = int(self._clients[drawn[row]])
                    raise ValueError(
                        f"By `trainer.system` client {client} takes {seconds} seconds for the model that it is sent as "
                        f"number {number}: times must be finite and not negative."
                    )
                found[row] = seconds
        return found
