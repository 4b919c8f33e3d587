"""The federated round, in the one place where rounds are looped. No algorithm is named here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lfl.callback import FederatedCallback, overrides
from lfl.comm import Message, Payload
from lfl.processes.deal import at_home
from lfl.processes.sums import ProcessSums
from lfl.round import Cohort, Round

if TYPE_CHECKING:
    from lfl.trainer import FederatedTrainer


class NonFiniteUpdateError(RuntimeError):
    """A client's update is not finite and the policy is to stop."""


class FederatedLoop:
    """Runs rounds on what the trainer has set up.

    Args:
        trainer: owns the engine, the server, the callbacks, the store, the ledger and the loggers.
    """

    def __init__(self, trainer: FederatedTrainer) -> None:
        self.trainer = trainer
        self._hooks = {name: [c for c in trainer.stack if overrides(c, name)] for name in _HOOKS}
        self._sums = ProcessSums(trainer.fabric)
        self._state_at_home = trainer.store.is_used

    def run_round(self, number: int) -> Round:
        """Select, download, train, encode, aggregate, decode, step the server, evaluate, log."""
        started = time.perf_counter()
        round = self._select(number)
        self._download(round)
        for cohort in self.trainer.engine.cohorts(round, self.trainer.server_buffers, self.trainer.server_counters):
            self._load_buffers(cohort)
            if not self.trainer.engine.train(cohort, self.trainer.learning_rates):
                self._tell_retreat(len(cohort))
                continue
            self._refuse_nonfinite(cohort)
            self._upload(cohort)
            self.trainer.display.clients_done(len(cohort.num_steps))
        self._aggregate(round)
        self._step(round)
        round.log("time/train_s", time.perf_counter() - started)
        self._evaluate(round)
        self._finish(round)
        round.log("time/round_s", time.perf_counter() - started)
        return round

    def _select(self, number: int) -> Round:
        trainer = self.trainer
        clients = trainer.participation.select(number, trainer.num_clients, trainer.seed)
        invited = trainer.participation.invited(clients, number, trainer.num_clients, trainer.seed)
        clients, invited = (ids[trainer.data.client_sizes[ids] > 0].sort().values for ids in (clients, invited))
        round = Round(trainer, number, clients, trainer.server.vector.clone(), self._local(clients), invited)
        trainer.display.round_started(number, len(round.local_clients))
        for callback in self._hooks["on_round_start"]:
            callback.on_round_start(round)
        for callback in self._hooks["coordinates"]:
            round.basis = callback.coordinates(round)
        trainer.aggregator.start()
        return round

    def _local(self, clients: Tensor) -> Tensor:
        """Those of a round's clients that this process trains: where their state is, or dealt by expected work."""
        trainer, fabric = self.trainer, self.trainer.fabric
        if fabric.world_size == 1:
            return clients
        if self._state_at_home:
            return clients[at_home(clients, fabric)]
        if trainer.store.is_used:  # by now the rows of a client lie wherever it was trained
            raise RuntimeError(
                f"Client slots {', '.join(trainer.store.slots)} were declared in a round, after clients without state "
                "had been dealt to processes: declare them in `setup`, or `trainer.store.reserve(name)` there."
            )
        sizes, batch_size = trainer.data.client_sizes[clients], trainer.data.batch_size
        work = trainer.work.expected(sizes, batch_size)
        return clients[trainer.engine.deal(work, fabric.world_size) == fabric.global_rank]

    def _download(self, round: Round) -> None:
        trainer = self.trainer
        trainer.ledger.start_round()
        message = Message()
        message.add("model", round.server)
        if trainer.buffers != "client" and trainer.server_buffers.numel():
            message.add("buffers", trainer.server_buffers)
        for callback in self._hooks["on_download"]:
            callback.on_download(message)
        trainer.ledger.download(message, round.invited, round.number)

    def _load_buffers(self, cohort: Cohort) -> None:
        if self.trainer.buffers == "client":
            cohort.buffers = self.trainer.client_buffers(cohort.ids)

    def _tell_retreat(self, size: int) -> None:
        self.trainer.display.message(
            f"Out of memory with {size} clients trained together: going on with {self.trainer.engine.cohort_size}."
        )

    def _refuse_nonfinite(self, cohort: Cohort) -> None:
        """Drop clients whose update is not finite, or stop: nothing of theirs reaches the server or the store."""
        finite = torch.isfinite(cohort.values.sum(dim=1) + cohort.buffers.sum(dim=1))
        if bool(finite.all()):
            return
        finite = torch.isfinite(cohort.values).all(dim=1) & torch.isfinite(cohort.buffers).all(dim=1)
        mask = finite.cpu()
        refused = cohort.ids[~mask].tolist()
        if not refused:
            return
        where = f"client(s) {', '.join(map(str, refused))} in round {cohort.round.number}"
        if self.trainer.on_nonfinite == "stop":
            raise NonFiniteUpdateError(
                f"The update of {where} is not finite (NaN or inf): look for bad values in its data, or lower the "
                "learning rate; `trainer.on_nonfinite=skip` goes on without such updates."
            )
        self.trainer.display.message(f"Skipped the update of {where}: it is not finite.")
        cohort.round.num_refused += len(refused)
        cohort.keep(mask)

    def _upload(self, cohort: Cohort) -> None:
        """What the clients of a cohort send: the encoded update, extra payloads, buffers; each counted."""
        if not len(cohort):
            return
        trainer, round = self.trainer, cohort.round
        for callback in self._hooks["on_cohort_end"]:
            callback.on_cohort_end(cohort)
        payload = Payload.dense(cohort.delta)
        for callback in self._codecs(round):
            payload = callback.encode(cohort, payload)
        trainer.ledger.upload("update", payload)
        rows = payload.values
        for callback in reversed(self._per_client_codecs(round)):
            rows = callback.decode(round, rows)
        weights = trainer.aggregator.weights(cohort.num_examples)
        trainer.aggregator.add(rows, weights)
        sent = payload.bits_per_client()
        for name, extra in cohort.uploads.items():
            dense = trainer.ledger.bits_of(extra[0])
            trainer.ledger.upload(name, Payload(extra, dense))
            sent = sent + dense
            round.accumulate(f"received/{name}", extra.sum(dim=0, dtype=torch.float64))
        # A module that logs a `train/loss` of its own means that one, as under Lightning.
        losses = {} if cohort.losses is None else {"train/loss": cohort.losses}
        for name, logged in {**losses, **cohort.metrics}.items():
            round.accumulate(f"metrics/{name}", logged.total.sum())
            round.accumulate(f"metrics/{name}/count", logged.total.new_tensor(logged.count.sum()))
        round.num_reported += len(cohort)
        round.reported.append(cohort.ids)
        if trainer.system is not None:
            bits = torch.zeros(len(round.clients), dtype=torch.float64)
            bits[torch.searchsorted(round.clients, cohort.ids)] = sent.double().cpu()
            round.accumulate("uplink_bits", bits.to(round.server.device))
        self._upload_buffers(cohort, weights)

    def _upload_buffers(self, cohort: Cohort, weights: Tensor) -> None:
        trainer, round = self.trainer, cohort.round
        if trainer.buffers == "client" and cohort.buffers.numel():
            trainer.store.scatter("buffers", cohort.ids, cohort.buffers)
        if trainer.buffers != "average":
            return
        round.keep_counters([rows.amax(dim=0) for rows in cohort.counters])
        if cohort.buffers.numel():
            trainer.ledger.upload("buffers", Payload.dense(cohort.buffers))
            # Differences, so that a buffer nobody changes stays what it is, to the bit.
            moved = (cohort.buffers - trainer.server_buffers).double()
            weights = weights.to(moved.device)
            round.accumulate("buffers", weights @ moved)
            round.accumulate("buffers/weight", weights.sum())

    def _aggregate(self, round: Round) -> None:
        """Join what the processes found, and decode the aggregate."""
        trainer = self.trainer
        counts = {"clients": round.num_reported, "refused": round.num_refused, "stopping": int(trainer.should_stop)}
        counts.update({f"up/{name}": bits for name, bits in trainer.ledger.up_bits.items()})
        for name, count in counts.items():
            round.sums[f"count/{name}"] = torch.tensor(float(count), dtype=torch.float64, device=round.server.device)
        round.sums.update({f"aggregate/{name}": value for name, value in trainer.aggregator.sums.items()})
        self._add_counters(round)
        round.sums = self._sums.join(round.sums)
        trainer.aggregator.sums = round.take("aggregate/")
        round.received = round.take("received/")
        round.num_reported, round.num_refused = (int(round.sums[f"count/{name}"]) for name in ("clients", "refused"))
        round.is_last = bool(round.sums["count/stopping"])
        trainer.ledger.close_round({name: int(bits) for name, bits in round.take("count/up/").items()})
        self._average_buffers(round)
        if not round.num_reported:
            return
        update = trainer.aggregator.result().to(round.server.dtype)
        for callback in reversed(self._shared_codecs(round)):
            update = callback.decode(round, update)
        if round.basis is not None:
            round.update_coordinates, update = update, round.basis.lift(update)
        round.update = update
        for callback in self._hooks["on_aggregate"]:
            callback.on_aggregate(round)

    def _average_buffers(self, round: Round) -> None:
        trainer = self.trainer
        if "buffers" in round.sums:
            moved = round.sums["buffers"] / round.sums["buffers/weight"]
            trainer.server_buffers = (trainer.server_buffers.double() + moved).to(trainer.server_buffers.dtype)
        if "counters" in round.sums:
            rows = round.sums["counters"]
            largest = rows[rows[:, 0] > 0, 1:].amax(dim=0).split([c.numel() for c in trainer.server_counters])
            parts = zip(largest, trainer.server_counters, strict=True)
            trainer.server_counters = [found.reshape(c.shape).to(c.dtype) for found, c in parts]

    def _add_counters(self, round: Round) -> None:
        """A sum in which every process has a row of its own, so that what is joined has the largest of all."""
        if round.counters:
            found = torch.cat([counter.double().reshape(-1) for counter in round.counters])
            rows = found.new_zeros(self.trainer.world_size, 1 + len(found))
            rows[self.trainer.global_rank] = torch.cat([found.new_ones(1), found])  # 1: this process has some
            round.sums["counters"] = rows

    def _step(self, round: Round) -> None:
        """Move the server, and record what a client would need to follow."""
        trainer = self.trainer
        if round.update is not None:
            trainer.server.step(round.update)
        sent = round.update_coordinates if trainer.server.is_plain_sgd else None
        bits = trainer.ledger.bits_of(round.server if sent is None else sent)
        trainer.ledger.record_increment("model", bits, round.number)
        for callback in self._hooks["on_server_step"]:
            callback.on_server_step(round)

    def _evaluate(self, round: Round) -> None:
        trainer = self.trainer
        for name, total in round.take("metrics/").items():
            if not name.endswith("/count"):
                round.log(name, total / round.sums[f"metrics/{name}/count"])
        for name, value in trainer.client_model.compute_metrics(trainer.gather_objects).items():
            round.log(name, value)
        if trainer.is_evaluation_due(round.number):
            for name, value in trainer.evaluate_server("validate", trainer.val_dataloaders).items():
                round.log(name, value)

    def _finish(self, round: Round) -> None:
        trainer = self.trainer
        round.log("lr", trainer.learning_rates.lr)
        round.log("clients", float(round.num_reported))
        if round.num_refused or trainer.total_refused:
            trainer.total_refused += round.num_refused
            round.log("clients_refused", float(round.num_refused))
        for name, value in trainer.ledger.metrics().items():
            round.log(name, value)
        if trainer.system is not None and "uplink_bits" in round.sums:
            bits = round.sums["uplink_bits"]
            for name, seconds in trainer.system.round_seconds(round.clients, bits, round.number, trainer.seed).items():
                trainer.simulated_seconds[name] = trainer.simulated_seconds.get(name, 0.0) + seconds
                round.log(f"sim/{name}", trainer.simulated_seconds[name])
        for callback in self._hooks["on_round_end"]:
            callback.on_round_end(round)

    def _codecs(self, round: Round) -> list[FederatedCallback]:
        """Those that encode in this round."""
        codecs = self._hooks["encode"]
        last = next((i for i, codec in enumerate(codecs) if codec.ends_encoding(round)), len(codecs))
        return codecs[: last + 1]

    def _first_shared(self) -> int:
        """Codecs before the first non-linear one are linear: what they encode is averaged before it is decoded."""
        codecs = self._hooks["encode"]
        return next((i for i, codec in enumerate(codecs) if not codec.linear), len(codecs))

    def _shared_codecs(self, round: Round) -> list[FederatedCallback]:
        return self._codecs(round)[: self._first_shared()]

    def _per_client_codecs(self, round: Round) -> list[FederatedCallback]:
        return self._codecs(round)[self._first_shared() :]


_HOOKS = (
    "on_round_start",
    "coordinates",
    "on_download",
    "on_cohort_end",
    "encode",
    "on_aggregate",
    "on_server_step",
    "on_round_end",
)
