"""What one round and one cohort know: the arguments of the hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from lfl.client.model import ClientModel
from lfl.client.optimizer import LocalOptimizer
from lfl.client.recorder import LoggedSum
from lfl.comm import Message
from lfl.processes.sums import ProcessSums
from lfl.subspace.base import Basis


@dataclass
class RoundSums:
    """What a round adds up over its clients, in float64; a field for each kind, so that no two names can meet.

    Each process adds up its own clients; ``join`` makes them sums over all.

    Attributes:
        num_reported: clients whose update was accepted.
        num_refused: clients whose update was not finite.
        num_stopping: processes that have been asked to stop.
        up_bits: bits of the uploads, by payload.
        aggregate: the aggregator's own sums.
        received: extra uploads, by payload.
        losses: training losses times examples, and the number of examples [2].
        logged: likewise what training steps logged, by name [2].
        own: what callbacks add up (``round.accumulate``).
        buffers: movements of the floating-point buffers, times weights, with the sum of the weights behind [B + 1].
        counters: largest integer buffers of each process, as a row of its own [W, 1 + n]; the first entry is 1 where it
            has any. The sum then has everybody's rows, whose maximum is taken.
        uplink_bits: bits that each participant sent [M], for the simulated system.
    """

    num_reported: int = 0
    num_refused: int = 0
    num_stopping: int = 0
    up_bits: dict[str, int] = field(default_factory=dict)
    aggregate: dict[str, Tensor] = field(default_factory=dict)
    received: dict[str, Tensor] = field(default_factory=dict)
    losses: Tensor | None = None
    logged: dict[str, Tensor] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)
    buffers: Tensor | None = None
    counters: Tensor | None = None
    uplink_bits: Tensor | None = None

    def means(self) -> dict[str, Tensor]:
        """Means over examples of all that was logged; a module's own ``train/loss`` stands in for ours."""
        ours = {} if self.losses is None else {"train/loss": self.losses}
        return {name: total[0] / total[1] for name, total in {**ours, **self.logged}.items()}

    def join(self, sums: ProcessSums, device: torch.device) -> RoundSums:
        """The sums over all processes; every process must call it. On one, these are the sums already."""
        if sums.num_processes == 1:
            return self
        flat = {}
        for kind in fields(self):
            value = getattr(self, kind.name)
            entries = value if isinstance(value, dict) else {} if value is None else {"": value}
            for name, entry in entries.items():
                flat[kind.name, name] = torch.as_tensor(entry, dtype=torch.float64, device=device)
        joined: dict[str, dict[str, Tensor]] = {kind.name: {} for kind in fields(self)}
        for (kind_name, name), total in sums.join(flat).items():
            joined[kind_name][name] = total
        return RoundSums(
            num_reported=int(joined["num_reported"][""]),
            num_refused=int(joined["num_refused"][""]),
            num_stopping=int(joined["num_stopping"][""]),
            up_bits={name: int(bits) for name, bits in joined["up_bits"].items()},
            aggregate=joined["aggregate"],
            received=joined["received"],
            losses=joined["losses"].get(""),
            logged=joined["logged"],
            own=joined["own"],
            buffers=joined["buffers"].get(""),
            counters=joined["counters"].get(""),
            uplink_bits=joined["uplink_bits"].get(""),
        )


@dataclass
class Round:
    """One round, as the server sees it.

    Attributes:
        number: counted from 1.
        clients: ids of the participants [M], ascending.
        invited: ids of those who are sent the model, ascending; the participants, unless some are not waited for.
        local_clients: those of them that this process trains.
        server: x before the round [D].
        message: what goes down to the clients.
        basis: the basis of the local coordinates, where a callback asked for them.
        update: the aggregate [D], set when it is known; in movement direction (x+ = x + server_lr * update).
        update_coordinates: the aggregate before it was lifted [R], where there is a basis.
        totals: all sums over clients; over all processes from ``on_aggregate`` on.
        reported: ids of each cohort whose updates this process accepted.
        metrics: what this round logs.
    """

    number: int
    clients: Tensor
    server: Tensor
    local_clients: Tensor
    invited: Tensor
    message: Message = field(default_factory=Message)
    basis: Basis | None = None
    update: Tensor | None = None
    update_coordinates: Tensor | None = None
    totals: RoundSums = field(default_factory=RoundSums)
    reported: list[Tensor] = field(default_factory=list)
    metrics: dict[str, float | Tensor] = field(default_factory=dict)

    @property
    def sums(self) -> dict[str, Tensor]:
        """What callbacks have added up over clients, float64, by name; complete from ``on_aggregate`` on."""
        return self.totals.own

    @property
    def received(self) -> dict[str, Tensor]:
        """Sums over clients of the extra uploads, float64, by payload; complete from ``on_aggregate`` on."""
        return self.totals.received

    @property
    def num_reported(self) -> int:
        """Clients whose update was accepted; of all processes from ``on_aggregate`` on."""
        return self.totals.num_reported

    @property
    def num_refused(self) -> int:
        """Clients whose update was not finite; of all processes from ``on_aggregate`` on."""
        return self.totals.num_refused

    def log(self, name: str, value: float | Tensor) -> None:
        """Log a number of this round; a tensor on a device is read only when the round is written."""
        self.metrics[name] = value

    def accumulate(self, name: str, value: Tensor) -> None:
        """Add to a sum over clients, which is found in ``sums`` under its name."""
        add_to(self.totals.own, name, value)


def add_to(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Add to a named float64 sum."""
    sums[name] = sums[name] + value if name in sums else value.double()


@dataclass
class CohortPhase:
    """A cohort's share of one phase of the local work.

    Attributes:
        index: the place of the phase in ``LocalWork.phases``.
        optimizer: of this phase.
        num_steps: local steps of each client in this phase [C] (int64, on the CPU).
        trained: 1 for the parameters it trains and 0 for the others [D]; None where it trains all.
    """

    index: int
    optimizer: LocalOptimizer
    num_steps: Tensor
    trained: Tensor | None


@dataclass
class Cohort:
    """C clients trained together, ordered so that those still at work are always the first.

    Attributes:
        round: the round they take part in.
        ids: client ids [C] (int64, on the CPU).
        num_examples: training examples [C] (int64, on the CPU).
        num_steps: local steps of each client in all phases [C] (int64, on the CPU).
        values: what the local optimizer changes: parameters [C, D], or coordinates [C, R].
        buffers: floating-point buffers of each client [C, B].
        counters: integer buffers of each client [C, ...], in the module's order.
        model: the one model of all clients.
        rows: per-client tensors [C, ...] that callbacks keep while the cohort is trained.
        loss_rows: per-client tensors [C, ...] that ``client_loss`` sees as ``client.rows``.
        origin: the starting point as a ``wrap_gradient`` sees it: x [D], rows [C, D] where clients start from models
            of their own, or zero [R] behind the owner of coordinates.
        active: clients that took the last step; the first ``active`` rows.
        step: number of the last local step, from 0 in every phase.
        phases: the parts of the local work, one after another.
        optimizer: the local optimizer of the current phase.
        losses: the clients' training losses; None where no step asked for one (a gradient over all examples).
        metrics: what the module and the loss terms log, by name; a module's own ``train/loss`` is one of them.
        uploads: extra payloads [C, n].
        full_gradient: from parameters [A, D] to gradients [A, D] of the mean loss over the whole training sets of the
            first A clients.
    """

    round: Round
    ids: Tensor
    num_examples: Tensor
    num_steps: Tensor
    values: Tensor
    buffers: Tensor
    rows: dict[str, Tensor] = field(default_factory=dict)
    loss_rows: dict[str, Tensor] = field(default_factory=dict)
    active: int = 0
    step: int = 0
    losses: LoggedSum | None = None
    metrics: dict[str, LoggedSum] = field(default_factory=dict)
    uploads: dict[str, Tensor] = field(default_factory=dict)
    counters: list[Tensor] = field(default_factory=list)
    phases: list[CohortPhase] = field(default_factory=list)
    model: ClientModel = field(init=False, repr=False)
    optimizer: LocalOptimizer = field(init=False)
    origin: Tensor = field(init=False)
    full_gradient: Callable[[Tensor], Tensor] = field(init=False, repr=False)

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def received(self) -> Mapping[str, Tensor]:
        """What the clients of this round were told, by name: what was sent, and what both sides compute alike."""
        return self.round.message.contents

    @property
    def params(self) -> Tensor:
        """Parameters [C, D] (computed from the coordinates where there are)."""
        basis = self.round.basis
        return self.values if basis is None else self.round.server + basis.lift(self.values)

    @property
    def delta(self) -> Tensor:
        """What the clients moved: parameters minus x [C, D], or coordinates z [C, R]."""
        return self.values - self.round.server if self.round.basis is None else self.values

    def step_scale(self) -> Tensor:
        """``||a||_1 * eta`` of each client [C, 1]: its movement is minus this times its (weighted) mean gradient.

        ``num_steps * lr`` for plain SGD; with momentum or a schedule inside the round, their scalar recursion. [C, D]
        where some phase trains only some parameters; infinite for those that none trains.

        Raises:
            ValueError: the local optimizer is not SGD.
        """
        total = torch.zeros(len(self), 1, dtype=self.values.dtype, device=self.values.device)
        for phase in self.phases:
            scale = total.new_tensor(phase.optimizer.movement_scales(phase.num_steps.tolist())).unsqueeze(1)
            total = total + (scale if phase.trained is None else scale * phase.trained)
        return total.where(total > 0, math.inf)

    def upload(self, name: str, rows: Tensor) -> None:
        """Send an extra payload [C, n]; its sum over the round's clients arrives in ``round.received[name]``."""
        self.uploads[name] = rows

    def keep(self, mask: Tensor) -> None:
        """Drop the clients where ``mask`` [C] (bool, CPU) is false, from every row this cohort holds."""
        on_device = mask.to(self.values.device)
        self.ids = self.ids[mask]
        self.num_examples = self.num_examples[mask]
        self.num_steps = self.num_steps[mask]
        self.phases = [replace(phase, num_steps=phase.num_steps[mask]) for phase in self.phases]
        self.values = self.values[on_device]
        self.buffers = self.buffers[on_device]
        self.rows = {name: rows[on_device] for name, rows in self.rows.items()}
        self.loss_rows = {name: rows[on_device] for name, rows in self.loss_rows.items()}
        self.losses = None if self.losses is None else self.losses.keep(mask)
        self.metrics = {name: logged.keep(mask) for name, logged in self.metrics.items()}
        self.counters = [rows[on_device] for rows in self.counters]
        self.active = len(self.ids)
