"""The parts of a run that a callback may know, and those that it may change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lfl.aggregation import Aggregator, Server
from lfl.client.evaluation import Evaluator
from lfl.client.layout import ParameterLayout
from lfl.client.model import ClientModel
from lfl.client.rates import LearningRates
from lfl.client.work import LocalPhase, LocalWork
from lfl.comm import Ledger, Outbox
from lfl.data.base import FederatedData
from lfl.participation import Participation
from lfl.processes.group import Processes
from lfl.processes.signals import StopRequest
from lfl.randomness import client_keys, generator
from lfl.round import Round
from lfl.storage.client_store import ClientStore
from lfl.system import System

BufferPolicy = Literal["average", "server", "client"]
_EVALUATED_BYTES = 256 * 2**20  # of the parameters of clients that are evaluated together
_MOST_EVALUATED = 128

FineTuner = Callable[[Round, Tensor, Tensor], Tensor]
"""A function of a round, client ids [C] and their models [C, D], which it trains in place; returns buffers [C, B]."""


@dataclass(kw_only=True)
class Federation(ABC):
    """A run as its callbacks see it; they are given it once, in ``on_run_start``, and may keep it.

    A callback may read all of it at any time, but for one rule: hooks of a cohort (``on_cohort_start``,
    ``wrap_gradient``, ``client_loss``, ``encode``, ...) are the clients. They know the settings, their rows of
    ``store``, and what came by the wire (``cohort.received``), and never look at ``server``.

    A callback may write: its own slots of ``store``; ``ledger``, by its methods; ``server.vector``, in
    ``on_run_start`` and ``on_server_step``, and from ``on_validation_start`` to ``on_validation_end``, which puts it
    back; ``directions``; and it may call ``stop``. Everything else is the loop's.

    Attributes:
        seed: seed of all draws; ``keys`` and ``generator`` draw from it.
        max_rounds: number of the last round.
        model: the one module of all clients, as a function of one vector.
        data: the clients' data: sizes, batches, the partition.
        work: what a client does in a round.
        participation: who takes part.
        system: how long simulated rounds take, if they are simulated.
        aggregator: makes one update of the clients' updates; its ``weights`` are the clients' weights in the mean.
        server: x [D], its optimizer and the model's buffers.
        store: rows that belong to clients, in named slots.
        ledger: counts what crosses the wire.
        outbox: what clients that are still at work were sent in earlier rounds.
        rates: the learning rates of the round.
        processes: the processes among which the clients are divided.
        evaluator: runs the module's validation, test and prediction steps.
        buffer_policy: what becomes of the model's buffers (BatchNorm's statistics): ``average`` averages the clients',
            ``server`` leaves the server's as they are, ``client`` keeps each client's own.
        stop_request: whether the run is to end after the present round.
    """

    seed: int
    max_rounds: int
    model: ClientModel
    data: FederatedData
    work: LocalWork
    participation: Participation
    system: System | None
    aggregator: Aggregator
    server: Server
    store: ClientStore
    ledger: Ledger
    outbox: Outbox
    rates: LearningRates
    processes: Processes
    evaluator: Evaluator
    buffer_policy: BufferPolicy
    stop_request: StopRequest = field(default_factory=StopRequest)

    @property
    def num_clients(self) -> int:
        """Number of clients in the federation (N)."""
        return int(self.data.num_clients)

    @property
    def layout(self) -> ParameterLayout:
        """The place of each parameter in a vector [D]."""
        return self.model.layout

    @property
    def directions(self) -> dict[str, int]:
        """Whether metrics should be large (1) or small (-1), by name, where more is known than the name."""
        return self.model.recorder.directions

    @property
    def device(self) -> torch.device:
        """The device of this process, which holds the vectors and rows."""
        return self.processes.device

    def keys(self, ids: Tensor, purpose: str, round_number: int) -> Tensor:
        """Keys [C] for draws of clients ``ids`` [C] in a round, on the device; see ``lfl.randomness``."""
        return client_keys(ids.to(self.device), self.seed, purpose, round_number)

    def generator(self, purpose: str, round_number: int) -> torch.Generator:
        """A CPU generator for the server's draws in a round; equal on all processes and after resuming."""
        return generator(self.seed, purpose, round_number)

    def stop(self) -> None:
        """End the run after this round, with a checkpoint, as ``trainer.should_stop = True`` does in Lightning.

        With several processes, a call after the round's sums have met ends the run one round later.
        """
        self.stop_request.should_stop = True

    def client_buffers(self, ids: Tensor) -> Tensor:
        """The buffers that clients ``ids`` [C] start from, [C, B]: the server's, or their own where they keep them."""
        shared = self.server.buffers.expand(len(ids), -1)
        if self.buffer_policy != "client" or not self.server.buffers.numel():
            return shared
        kept = self.store.gather("buffers", ids)
        is_kept = self.store.has_rows("buffers", ids)[:, None].to(kept.device)
        return torch.where(is_kept, kept, shared)

    @property
    def held_out(self) -> Tensor:
        """Ids of the clients that never take part, ascending."""
        return self.participation.held_out(self.num_clients, self.seed)

    @property
    def joining(self) -> Tensor:
        """Mask [N] of the clients that may take part: those with training examples that are not held out."""
        may_join: Tensor = self.data.client_sizes > 0
        may_join[self.held_out] = False
        return may_join

    @property
    def num_joining(self) -> int:
        """Number of the clients that may take part, by which the means over all clients divide."""
        return int(self.joining.sum())

    @property
    def evaluated_at_once(self) -> int:
        """The number of clients' models for ``evaluate_clients`` at a time: those that take 256 MiB, at most 128."""
        row = max(1, self.layout.dim) * self.layout.dtype.itemsize
        return max(1, min(_MOST_EVALUATED, _EVALUATED_BYTES // row))

    @abstractmethod
    def evaluate_clients(self, ids: Tensor, params: Tensor, buffers: Tensor | None = None) -> list[dict[str, float]]:
        """Validation metrics of clients ``ids`` [C] on their own test examples; none of those that have no examples.

        Args:
            ids: the clients.
            params: their models [C, D], with their own buffers; or one for all [D], with the server's buffers.
            buffers: others [C, B] instead of these.
        """

    @property
    @abstractmethod
    def clients_at_once(self) -> int:
        """The largest number of clients that are trained together (C)."""

    @abstractmethod
    def personal_models(self, ids: Tensor) -> Tensor:
        """The clients' own models now [C, D], to evaluate them: x, with the personal parameters of ``ids`` [C]."""

    @abstractmethod
    def fine_tuner(self, phases: Sequence[LocalPhase]) -> FineTuner:
        """Return a function that trains copies of clients' models, to evaluate them; the run itself does not change."""
