"""Clients that nobody waits for: participants are those whose updates arrive next."""

from __future__ import annotations

import torch
from jsonargparse.typing import PositiveInt
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number
from lfl.events import Arrivals, EventQueue
from lfl.participation.base import Participation
from lfl.system import Speeds

_CLOSE = 0.01  # seconds that differ by less are as expected


class AsynchronousParticipation(Participation):
    """Clients that nobody waits for: a round is a step of the server, along the next updates that arrive.

    FedAsync (Xie et al., 2019) with a buffer of 1, FedBuff (Nguyen et al., AISTATS 2022) with a larger one; what late
    updates count is the aggregator's, ``lfl.aggregation.FedAsync`` or ``FedBuff``. ``lfl.events.EventQueue`` has the
    rules: who is sent the model when, and in which order what happens at one instant. Clients train on what they were
    sent, of which the server keeps one copy for each round whose model somebody is at work on. Learning rates, amounts
    of work and random draws are those of the round in which the update arrives.

    Needs a ``trainer.system`` that knows how fast clients are, such as ``lfl.system.ExponentialSpeeds``; speeds that
    are dynamic are drawn anew whenever a client is sent the model. The events follow from seed and speeds: a run that
    is resumed goes through them again, about a millisecond for each update, and a checkpoint holds the models only.

    What a client will send is known only when its update arrives, which the events must know before: they take what the
    system expects, ``expected_up`` and ``expected_down`` of ``lfl.system.Links``. Where other bits are sent, as by
    codecs, a warning says so.

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
        self._is_warned = False

    @override
    def check(self, num_clients: int) -> None:
        if not isinstance(self.system, Speeds):
            raise ValueError(
                "AsynchronousParticipation takes updates in the order in which they arrive: it needs a "
                "`trainer.system` that knows the clients' speeds, such as `lfl.system.ExponentialSpeeds`."
            )
        if self.system.loses_clients:
            raise ValueError(
                f"AsynchronousParticipation and {type(self.system).__name__} have no meaning together: nobody waits "
                "for clients, so that none is late. Use a `trainer.system` that loses none."
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
        self, round_number: int, num_clients: int, seed: int, bits: Tensor, down_bits: Tensor
    ) -> dict[str, float]:
        arrivals = self._arrivals(round_number, num_clients, seed)
        self._compare(arrivals.clients, bits, None, seed, "expected_up")
        self._compare(arrivals.invited, None, down_bits, seed, "expected_down")
        return {"time": arrivals.seconds}

    @override
    def metrics(self, round_number: int, num_clients: int, seed: int) -> dict[str, float]:
        staleness = (round_number - self._arrivals(round_number, num_clients, seed).sent_in).double()
        return {"async/staleness": float(staleness.mean()), "async/max_staleness": float(staleness.max())}

    def _compare(self, clients: Tensor, bits: Tensor | None, down_bits: Tensor | None, seed: int, setting: str) -> None:
        """Warn, once, if clients took other bits than the events, which come before them, have expected."""
        system = self.system
        if self._is_warned or system is None or not len(clients):
            return
        # Both of the same draws: only the bits differ.
        expected = system.client_seconds(clients, None, 1, seed)
        found = system.client_seconds(clients, bits, 1, seed, down_bits)
        if not torch.allclose(found, expected, rtol=_CLOSE):
            self._is_warned = True
            rank_zero_warn(
                "The clock of AsynchronousParticipation orders updates before it knows how many bits they take, and "
                f"expected {float(expected.mean()):.3g} s for what takes {float(found.mean()):.3g} s: set `{setting}` "
                "of the links to the bits of what is sent."
            )

    def _able(self, num_clients: int) -> Tensor:
        """Ids of the clients that can be sent the model: those without examples have nothing to train on."""
        return torch.arange(num_clients) if self.client_sizes is None else self.client_sizes.nonzero().squeeze(1)

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
                lambda ids, dispatch: system.client_seconds(ids, None, dispatch, seed),
                seed,
            )
        while self._queue.round < round_number:
            self._last = self._queue.next_round()
        assert self._last is not None
        return self._last
