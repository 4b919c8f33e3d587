"""The round and the cohort, as the hooks of callbacks see them, and the sums over a round's clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from lfl.client.model import ClientModel
from lfl.client.optimizer import LocalOptimizer
from lfl.client.recorder import LoggedSum
from lfl.comm import Message, Sent
from lfl.processes.sums import ProcessSums
from lfl.subspace.base import Basis


@dataclass
class RoundSums:
    """The sums of a round over its clients, in float64; a field for each kind, so that no two names can meet.

    Each process adds up its own clients; ``join`` makes them sums over all.

    Attributes:
        num_reported: clients whose update was accepted.
        num_refused: clients whose update was not finite.
        num_stopping: processes that have been asked to stop.
        epochs: passes over their data that the clients made, where that varies.
        up_bits: bits of the uploads, by payload.
        aggregate: the aggregator's own sums.
        received: sums of the extra uploads, by payload.
        losses: the sum of training losses times examples, and the number of examples [2].
        logged: the same two numbers for each name that training steps logged [2].
        own: sums that callbacks make (``round.accumulate``).
        buffers: weighted sum of the clients' changes of the floating-point buffers; the last entry is the sum of the
            weights [B + 1].
        counters: the largest integer buffers of each of W processes [W, 1 + n]. A process fills its own row only, and
            sets the row's first entry to 1 if it trained anybody; so the sum over processes holds all rows, of which
            the maximum is taken.
        uplink_bits: bits that each participant sent [M], for the simulated system.
    """

    num_reported: int = 0
    num_refused: int = 0
    num_stopping: int = 0
    epochs: float = 0.0
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
        """Means over examples of all that was logged; a ``train/loss`` logged by the module replaces ours."""
        ours = {} if self.losses is None else {"train/loss": self.losses}
        return {name: total[0] / total[1] for name, total in {**ours, **self.logged}.items()}

    def join(self, sums: ProcessSums, device: torch.device) -> RoundSums:
        """Return the sums over all processes; every process must call it."""
        if sums.num_processes == 1:
            return self
        # One dict of tensors is one `all_reduce`. In float64 counts and bits are exact up to 2^53.
        flat = {}
        for kind in fields(self):
            value = getattr(self, kind.name)
            entries = value if isinstance(value, dict) else {} if value is None else {"": value}
            # The field is part of the key: a user's metric may have the name of a payload or of another field.
            for name, entry in entries.items():
                flat[kind.name, name] = torch.as_tensor(entry, dtype=torch.float64, device=device)
        # Another process may have names that this one lacks, and the other way round: read what came back.
        joined: dict[str, dict[str, Tensor]] = {kind.name: {} for kind in fields(self)}
        for (kind_name, name), total in sums.join(flat).items():
            joined[kind_name][name] = total
        return RoundSums(
            num_reported=int(joined["num_reported"][""]),
            num_refused=int(joined["num_refused"][""]),
            num_stopping=int(joined["num_stopping"][""]),
            epochs=float(joined["epochs"][""]),
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


def _nobody() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass
class Round:
    """One round, as the server sees it.

    Attributes:
        number: counted from 1.
        clients: ids of the participants [M], ascending.
        invited: ids of the clients that are sent the model, ascending: the participants, those that the server does
            not wait for, and those that it waits for in vain (``late``, ``dropped``).
        local_clients: ids of the participants that this process trains.
        server: x before the round [D]. What clients started from may be older: ``cohort.start``.
        message: what the clients ``invited`` are sent.
        sent_in: the rounds in which the participants were sent what they train on [M]; None for this one.
        earlier: what was sent in those of these rounds that are over.
        basis: the basis of the local coordinates; None where clients train parameters.
        update: the aggregate [D], from ``on_aggregate`` on. It points where the clients moved, against the gradient:
            x+ = x + server_lr * update.
        update_coordinates: the aggregate before it was lifted [R], where there is a basis.
        step_bits: bits from which clients that hold x follow the server's step, where a callback has set it in
            ``on_server_step``; None for the aggregate's coordinates or, where x may have left the basis, the whole.
        totals: all sums over clients: of this process, and of all processes from ``on_aggregate`` on.
        late: ids of clients that were chosen, and would answer after the system's deadline: nobody has trained them.
        dropped: ids of clients that were chosen, and dropped out of the round in the simulated system.
        reported: ids of the clients whose updates this process accepted, one tensor for each cohort.
        metrics: numbers that this round logs.
    """

    number: int
    clients: Tensor
    server: Tensor
    local_clients: Tensor
    invited: Tensor
    message: Message = field(default_factory=Message)
    sent_in: Tensor | None = None
    earlier: Mapping[int, Sent] = field(default_factory=dict)
    basis: Basis | None = None
    update: Tensor | None = None
    update_coordinates: Tensor | None = None
    step_bits: int | None = None
    totals: RoundSums = field(default_factory=RoundSums)
    late: Tensor = field(default_factory=_nobody)
    dropped: Tensor = field(default_factory=_nobody)
    reported: list[Tensor] = field(default_factory=list)
    metrics: dict[str, float | Tensor] = field(default_factory=dict)

    @property
    def sums(self) -> dict[str, Tensor]:
        """The sums that callbacks have added up over clients, float64, by name; complete from ``on_aggregate`` on.

        Where nobody reported, every sum is zero.
        """
        return _Sums(self, self.totals.own)

    @property
    def received(self) -> dict[str, Tensor]:
        """Sums over clients of the extra uploads, float64, by payload; complete from ``on_aggregate`` on.

        Where nobody reported, every sum is zero.
        """
        return _Sums(self, self.totals.received)

    @property
    def num_reported(self) -> int:
        """Clients whose update was accepted; of all processes from ``on_aggregate`` on."""
        return self.totals.num_reported

    @property
    def num_refused(self) -> int:
        """Clients whose update was not finite; of all processes from ``on_aggregate`` on."""
        return self.totals.num_refused

    @property
    def num_lost(self) -> int:
        """Clients that were chosen and did not answer: late or dropped."""
        return len(self.late) + len(self.dropped)

    def sent_to(self, clients: Tensor) -> Tensor:
        """The rounds in which participants ``clients`` [C] were sent what they train on [C]."""
        if self.sent_in is None:
            return torch.full_like(clients, self.number)
        return self.sent_in[torch.searchsorted(self.clients, clients)]

    def sent(self, number: int) -> Sent:
        """All that was sent in a round: in this one, or in one of those that participants have from ``earlier``."""
        return Sent(self.server, self.message.contents) if number == self.number else self.earlier[number]

    def log(self, name: str, value: float | Tensor) -> None:
        """Log a number of this round; a tensor on a device is read only when the round is written."""
        self.metrics[name] = value

    def accumulate(self, name: str, value: Tensor) -> None:
        """Add ``value`` to the sum over clients that becomes ``sums[name]``."""
        add_to(self.totals.own, name, value)


class _Sums(dict[str, Tensor]):
    """Sums of a round, by name. Over no clients they are zero; an unknown name of others is an error that says so."""

    def __init__(self, round: Round, sums: dict[str, Tensor]) -> None:
        super().__init__(sums)
        self._round = round

    def __missing__(self, name: str) -> Tensor:
        if not self._round.num_reported:
            return self._round.server.new_zeros((), dtype=torch.float64)
        known = ", ".join(sorted(self)) or "none"
        raise KeyError(
            f"Nobody has added up {name!r} in round {self._round.number}; there are: {known}. "
            "`sums.get(name, 0.0)` is zero where no client has added anything."
        )


def add_to(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Add ``value`` to a named float64 sum."""
    # Never in place: of a float64 tensor `double()` is the tensor itself, which belongs to the caller.
    sums[name] = sums[name] + value if name in sums else value.double()


@dataclass
class CohortPhase:
    """One phase of the local work, for one cohort.

    Attributes:
        index: the position of the phase in ``LocalWork.phases``.
        optimizer: the local optimizer of this phase.
        num_steps: local steps of each client in this phase [C] (int64, on the CPU).
        trained: mask [D], 1 for the parameters that the phase trains and 0 for the others; None if it trains all.
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
        origin: the starting points, for ``wrap_gradient``: rows [C, D] of ``start``, or of the clients' own models
            where they have such; zeros [C, R] for callbacks behind the one that owns the coordinates.
        rate_factor: multiplies the local learning rates; ``on_cohort_start`` may change it.
        active: number A of clients that took the last step; they are the first A rows.
        step: number of the last local step, from 0 in every phase.
        phases: the parts of the local work, one after another.
        optimizer: the local optimizer of the current phase.
        losses: the clients' training losses; None if no step computed one (each used a gradient over all examples).
        metrics: sums of what the module and the loss terms log, by name; a ``train/loss`` logged by the module is here.
        uploads: extra payloads [C, n], by name.
        upload_bits: bits of those that are sent in another form, or by some clients only [C] (int64), by name.
        full_gradient: a function from parameters [A, D] of the first A clients to the gradients [A, D] of their mean
            losses over their whole training sets.
    """

    round: Round
    ids: Tensor
    num_examples: Tensor
    num_steps: Tensor
    values: Tensor
    buffers: Tensor
    rows: dict[str, Tensor] = field(default_factory=dict)
    loss_rows: dict[str, Tensor] = field(default_factory=dict)
    rate_factor: float = 1.0
    active: int = 0
    step: int = 0
    losses: LoggedSum | None = None
    metrics: dict[str, LoggedSum] = field(default_factory=dict)
    uploads: dict[str, Tensor] = field(default_factory=dict)
    upload_bits: dict[str, Tensor] = field(default_factory=dict)
    counters: list[Tensor] = field(default_factory=list)
    phases: list[CohortPhase] = field(default_factory=list)
    model: ClientModel = field(init=False, repr=False)
    optimizer: LocalOptimizer = field(init=False)
    origin: Tensor = field(init=False)
    full_gradient: Callable[[Tensor], Tensor] = field(init=False, repr=False)

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def places(self) -> Tensor:
        """The clients' positions [C] among the round's participants, who are in ascending order of id."""
        return torch.searchsorted(self.round.clients, self.ids)

    @property
    def staleness(self) -> Tensor:
        """Steps that the server has taken since each client was sent what it trains on [C] (int64, on the CPU)."""
        if self.round.sent_in is None:
            return torch.zeros_like(self.ids)
        return self.round.number - self.round.sent_to(self.ids)

    @property
    def received(self) -> Mapping[str, Tensor]:
        """All that clients know of the server, by name: what was sent, and what both sides compute alike.

        Clients that were sent different messages are in one cohort only where the model is all that was sent, and no
        term of the loss reads it; then it is rows [C, n].
        """
        first, *others = self._sent
        if not others:
            return first.contents
        rows = dict(zip(self._sent_numbers, self._sent, strict=True))
        sent = [rows[number].contents for number in self.round.sent_to(self.ids).tolist()]
        return {name: torch.stack([contents[name] for contents in sent]) for name in first.contents}

    @cached_property
    def start(self) -> Tensor:
        """The x that each client was sent, rows [C, D]; not to be written into, since equal rows share memory."""
        first, *others = self._sent
        if not others:
            return first.server.expand(len(self), -1)
        servers = torch.stack([sent.server for sent in self._sent])
        which = torch.searchsorted(torch.tensor(self._sent_numbers), self.round.sent_to(self.ids))
        return servers[which.to(servers.device)]

    @cached_property
    def anchor(self) -> Tensor:
        """The x that all clients of a cohort whose loss has terms were sent [D]; see ``received``."""
        return self.start[0]

    @property
    def _sent_numbers(self) -> list[int]:
        """The rounds in which the clients were sent what they train on, ascending."""
        numbers: list[int] = self.round.sent_to(self.ids).unique().tolist()
        return numbers

    @property
    def _sent(self) -> list[Sent]:
        """All that was sent in those rounds, one entry for each."""
        if self.round.sent_in is None:
            return [self.round.sent(self.round.number)]
        return [self.round.sent(number) for number in self._sent_numbers]

    @property
    def params(self) -> Tensor:
        """Parameters [C, D]; where clients train coordinates, computed from them."""
        basis = self.round.basis
        return self.values if basis is None else self.round.server + basis.lift(self.values)

    @property
    def delta(self) -> Tensor:
        """The clients' updates, trained minus sent: parameters minus ``start`` [C, D], or coordinates z [C, R]."""
        return self.values - self.start if self.round.basis is None else self.values

    def step_scale(self, pull: float = 0.0) -> Tensor:
        """Sum of each client's step lengths [C, 1]: ``delta = -step_scale() * (weighted) mean gradient``.

        ``num_steps * lr`` (K eta) for plain SGD. With momentum or a schedule inside the round it is how far the
        optimizer moves along a constant unit gradient, ``||a||_1 eta`` in FedNova's notation. [C, D] where some phase
        trains only some parameters; infinite for parameters that no phase trains.

        Args:
            pull: mu of a proximal term ``mu (y - x)``, which shortens the movement: ``(1 - (1 - mu eta)^K) / mu`` for
                plain SGD.

        Raises:
            ValueError: the local optimizer is not SGD, or there is a pull in several phases.
        """
        if pull and len(self.phases) > 1:
            raise ValueError(f"A proximal term has no single weight over {len(self.phases)} `local_phases`: use one.")
        total = torch.zeros(len(self), 1, dtype=self.values.dtype, device=self.values.device)
        for phase in self.phases:
            scale = total.new_tensor(phase.optimizer.movement_scales(phase.num_steps.tolist(), pull)).unsqueeze(1)
            total = total + (scale if phase.trained is None else scale * phase.trained)
        # Callers divide by it: a parameter that nothing trained then has gradient 0, and not 0 / 0.
        return total.where(total > 0, math.inf)

    def upload(self, name: str, rows: Tensor, bits: Tensor | None = None) -> None:
        """Send an extra payload [C, n]; its sum over the round's clients arrives in ``round.received[name]``.

        Args:
            name: of the payload.
            rows: what is sent.
            bits: what it costs each client [C] (int64); None for the numbers as they are.
        """
        self.uploads[name] = rows
        if bits is not None:
            self.upload_bits[name] = bits

    def keep(self, mask: Tensor) -> None:
        """Keep only the clients where ``mask`` [C] (bool, on the CPU) is true, in every tensor of this cohort."""
        on_device = mask.to(self.values.device)
        self.ids = self.ids[mask]
        for name in ("start", "anchor"):
            self.__dict__.pop(name, None)  # what is cached is of those who were there
        self.num_examples = self.num_examples[mask]
        self.num_steps = self.num_steps[mask]
        # The optimizers' own rows are left as they are: all steps have been taken.
        self.phases = [replace(phase, num_steps=phase.num_steps[mask]) for phase in self.phases]
        self.values = self.values[on_device]
        self.buffers = self.buffers[on_device]
        self.rows = {name: rows[on_device] for name, rows in self.rows.items()}
        self.loss_rows = {name: rows[on_device] for name, rows in self.loss_rows.items()}
        self.losses = None if self.losses is None else self.losses.keep(mask)
        self.metrics = {name: logged.keep(mask) for name, logged in self.metrics.items()}
        self.counters = [rows[on_device] for rows in self.counters]
        self.active = len(self.ids)
