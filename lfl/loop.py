"""The rounds of a run, and the round: the one place where either is looped. No algorithm is named here."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from lfl.callback import FederatedCallback, overrides
from lfl.comm import Payload
from lfl.processes.sums import ProcessSums
from lfl.round import Cohort, Round, add_to
from lfl.run import Run


class NonFiniteUpdateError(RuntimeError):
    """A client's update is not finite and the policy is to stop."""


class FederatedLoop:
    """Runs the rounds of a run.

    Args:
        run: the run; clients' slots have been declared.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._hooks = {name: [c for c in run.callbacks if overrides(c, name)] for name in _HOOKS}
        self._sums = ProcessSums(run.processes)
        self._state_at_home = run.store.is_used

    def run_rounds(self) -> None:
        """Run round after round until the last, or until somebody asks to stop."""
        run = self.run
        stopping = any(run.processes.gather(run.stop_request.should_stop))
        while run.progress.round < run.max_rounds and not stopping:
            logged = run.model.call_hook("on_train_epoch_start")
            round = self.run_round(run.progress.round + 1)
            run.progress.round = round.number
            logged |= run.model.call_hook("on_train_epoch_end")
            metrics = {name: float(value) for name, value in {**logged, **round.metrics}.items()}
            run.rates.step(round.number, metrics, run.is_evaluation_due(round.number))
            self._write(round.number, metrics)
            # Processes are asked to stop at different moments: they agree by the sums of a round.
            stopping = run.stop_request.should_stop if run.processes.count == 1 else round.totals.num_stopping > 0
        if run.checkpointing is not None:
            for name in run.checkpointing.due_at_end(run.progress.round):
                run.save(name)

    def run_round(self, number: int) -> Round:
        """Select, download, train, encode, aggregate, decode, step the server, evaluate, log."""
        started = time.perf_counter()
        run, round = self.run, self._select(number)
        self._download(round)
        for cohort in run.engine.cohorts(round, run.server.buffers, run.server.counters):
            self._load_buffers(cohort)
            if not run.engine.train(cohort, run.rates):
                self._tell_retreat(len(cohort))
                continue
            self._refuse_nonfinite(cohort)
            self._upload(cohort)
            run.display.clients_done(len(cohort.num_steps))
        self._aggregate(round)
        self._step(round)
        round.log("time/train_s", time.perf_counter() - started)
        self._evaluate(round)
        self._finish(round)
        round.log("time/round_s", time.perf_counter() - started)
        return round

    def _select(self, number: int) -> Round:
        run = self.run
        chosen = run.participation.select(number, run.num_clients, run.seed)
        asked = run.participation.invited(chosen, number, run.num_clients, run.seed)
        clients, invited = (ids[run.data.client_sizes[ids] > 0].sort().values for ids in (chosen, asked))
        round = Round(number, clients, run.server.vector.clone(), self._local(clients), invited)
        run.display.round_started(number, len(round.local_clients))
        for callback in self._hooks["on_round_start"]:
            callback.on_round_start(round)
        for callback in self._hooks["coordinates"]:
            round.basis = callback.coordinates(round)
        run.aggregator.start()
        return round

    def _local(self, clients: Tensor) -> Tensor:
        """Those of a round's clients that this process trains: where their state is, or dealt by expected work."""
        run, processes = self.run, self.run.processes
        if processes.count == 1:
            return clients
        if self._state_at_home:
            return clients[processes.at_home(clients)]
        if run.store.is_used:  # by now the rows of a client lie wherever it was trained
            raise RuntimeError(
                f"Client slots {', '.join(run.store.slots)} were declared in a round, after clients without state had "
                "been dealt to processes: declare them in `on_run_start`, or `federation.store.reserve(name)` there."
            )
        work = run.work.expected(run.data.client_sizes[clients], run.data.batch_size)
        return clients[run.engine.deal(work, processes.count) == processes.rank]

    def _download(self, round: Round) -> None:
        run, message = self.run, round.message
        run.ledger.start_round()
        message.add("model", round.server)
        if run.buffer_policy != "client" and run.server.buffers.numel():
            message.add("buffers", run.server.buffers)
        for callback in self._hooks["on_download"]:
            callback.on_download(message)
        run.ledger.download(message, round.invited, round.number)

    def _load_buffers(self, cohort: Cohort) -> None:
        if self.run.buffer_policy == "client":
            cohort.buffers = self.run.client_buffers(cohort.ids)

    def _tell_retreat(self, size: int) -> None:
        self.run.display.message(
            f"Out of memory with {size} clients trained together: going on with {self.run.engine.cohort_size}."
        )

    def _refuse_nonfinite(self, cohort: Cohort) -> None:
        """Drop clients whose update is not finite, or stop: nothing of theirs reaches the server or the store."""
        # A sum is finite where all its terms are, and almost only there: the thorough look is rarely taken.
        finite = torch.isfinite(cohort.values.sum(dim=1) + cohort.buffers.sum(dim=1))
        if bool(finite.all()):
            return
        finite = torch.isfinite(cohort.values).all(dim=1) & torch.isfinite(cohort.buffers).all(dim=1)
        mask = finite.cpu()
        refused = cohort.ids[~mask].tolist()
        if not refused:
            return
        where = f"client(s) {', '.join(map(str, refused))} in round {cohort.round.number}"
        if self.run.on_nonfinite == "stop":
            raise NonFiniteUpdateError(
                f"The update of {where} is not finite (NaN or inf): look for bad values in its data, or lower the "
                "learning rate; `trainer.on_nonfinite=skip` goes on without such updates."
            )
        self.run.display.message(f"Skipped the update of {where}: it is not finite.")
        cohort.round.totals.num_refused += len(refused)
        cohort.keep(mask)

    def _upload(self, cohort: Cohort) -> None:
        """What the clients of a cohort send: the encoded update, extra payloads, buffers; each counted."""
        if not len(cohort):
            return
        run, round, totals = self.run, cohort.round, cohort.round.totals
        for callback in self._hooks["on_cohort_end"]:
            callback.on_cohort_end(cohort)
        payload = Payload.dense(cohort.delta)
        for callback in self._codecs(round):
            payload = callback.encode(cohort, payload)
        run.ledger.upload("update", payload)
        rows = payload.values
        for callback in reversed(self._per_client_codecs(round)):
            rows = callback.decode(round, rows)
        weights = run.aggregator.weights(cohort.num_examples)
        run.aggregator.add(rows, weights)
        sent = payload.bits_per_client()
        for name, extra in cohort.uploads.items():
            dense = run.ledger.bits_of(extra[0])
            run.ledger.upload(name, Payload(extra, dense))
            sent = sent + dense
            add_to(totals.received, name, extra.sum(dim=0, dtype=torch.float64))
        if cohort.losses is not None:
            totals.losses = cohort.losses.sum() if totals.losses is None else totals.losses + cohort.losses.sum()
        for name, logged in cohort.metrics.items():
            add_to(totals.logged, name, logged.sum())
        totals.num_reported += len(cohort)
        round.reported.append(cohort.ids)
        if run.system is not None:
            bits = torch.zeros(len(round.clients), dtype=torch.float64)
            bits[torch.searchsorted(round.clients, cohort.ids)] = sent.double().cpu()
            totals.uplink_bits = bits if totals.uplink_bits is None else totals.uplink_bits + bits
        self._upload_buffers(cohort, weights)

    def _upload_buffers(self, cohort: Cohort, weights: Tensor) -> None:
        run, totals = self.run, cohort.round.totals
        if run.buffer_policy == "client" and cohort.buffers.numel():
            run.store.scatter("buffers", cohort.ids, cohort.buffers)
        if run.buffer_policy != "average":
            return
        if cohort.counters:
            largest = torch.cat([rows.amax(dim=0).double().reshape(-1) for rows in cohort.counters])
            totals.counters = largest if totals.counters is None else torch.maximum(totals.counters, largest)
        if cohort.buffers.numel():
            run.ledger.upload("buffers", Payload.dense(cohort.buffers))
            # Differences, so that a buffer nobody changes stays what it is, to the bit.
            moved = (cohort.buffers - run.server.buffers).double()
            weights = weights.to(moved.device)
            found = torch.cat([weights @ moved, weights.sum().reshape(1)])
            totals.buffers = found if totals.buffers is None else totals.buffers + found

    def _aggregate(self, round: Round) -> None:
        """Join what the processes found, and decode the aggregate."""
        run, totals = self.run, round.totals
        totals.num_stopping = int(run.stop_request.should_stop)
        totals.up_bits, totals.aggregate = run.ledger.up_bits, run.aggregator.sums
        totals.counters = self._as_row(totals.counters)
        round.totals = totals = totals.join(self._sums, round.server.device)
        run.aggregator.sums = totals.aggregate
        run.ledger.close_round(totals.up_bits)
        if totals.buffers is not None:
            run.server.move_buffers(totals.buffers[:-1] / totals.buffers[-1])
        if totals.counters is not None:
            rows = totals.counters
            run.server.set_counters(rows[rows[:, 0] > 0, 1:].amax(dim=0))
        if not totals.num_reported:
            return
        update = run.aggregator.result().to(round.server.dtype)
        for callback in reversed(self._shared_codecs(round)):
            update = callback.decode(round, update)
        if round.basis is not None:
            round.update_coordinates, update = update, round.basis.lift(update)
        round.update = update
        for callback in self._hooks["on_aggregate"]:
            callback.on_aggregate(round)

    def _as_row(self, counters: Tensor | None) -> Tensor | None:
        """This process's largest counters [n] as its row of a sum [W, 1 + n]: a maximum over processes by a sum."""
        if counters is None:
            return None
        rows = counters.new_zeros(self.run.processes.count, 1 + len(counters))
        rows[self.run.processes.rank] = torch.cat([counters.new_ones(1), counters])
        return rows

    def _step(self, round: Round) -> None:
        """Move the server, and record what a client would need to follow."""
        run = self.run
        if round.update is not None:
            run.server.step(round.update)
        sent = round.update_coordinates if run.server.is_plain_sgd else None
        bits = run.ledger.bits_of(round.server if sent is None else sent)
        run.ledger.record_increment("model", bits, round.number)
        for callback in self._hooks["on_server_step"]:
            callback.on_server_step(round)

    def _evaluate(self, round: Round) -> None:
        run = self.run
        for name, mean in round.totals.means().items():
            round.log(name, mean)
        for name, value in run.model.compute_metrics(run.processes.gather).items():
            round.log(name, value)
        if run.is_evaluation_due(round.number):
            run.load_server_model()
            for name, value in run.evaluator.run("validate", run.val_dataloaders)[0].items():
                round.log(name, value)

    def _finish(self, round: Round) -> None:
        run, progress = self.run, self.run.progress
        round.log("lr", run.rates.lr)
        round.log("clients", float(round.num_reported))
        if round.num_refused or progress.refused:
            progress.refused += round.num_refused
            round.log("clients_refused", float(round.num_refused))
        for name, value in run.ledger.metrics().items():
            round.log(name, value)
        if run.system is not None and round.totals.uplink_bits is not None:
            bits = round.totals.uplink_bits
            for name, seconds in run.system.round_seconds(round.clients, bits, round.number, run.seed).items():
                progress.simulated_seconds[name] = progress.simulated_seconds.get(name, 0.0) + seconds
                round.log(f"sim/{name}", progress.simulated_seconds[name])
        for callback in self._hooks["on_round_end"]:
            callback.on_round_end(round)

    def _write(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log a round, then make the checkpoint: what a checkpoint promises has been written before it."""
        run = self.run
        if run.processes.is_first:
            for logger in run.loggers:
                logger.log_metrics(metrics, step=round_number)
        run.summary.update(round_number, metrics)
        run.display.round_done(round_number, metrics)
        if run.checkpointing is not None:
            for name in run.checkpointing.due_after(round_number, metrics, is_final=round_number == run.max_rounds):
                run.save(name)

    def _codecs(self, round: Round) -> list[FederatedCallback]:
        """Those that encode in this round."""
        codecs = self._hooks["encode"]
        last = next((i for i, codec in enumerate(codecs) if codec.ends_encoding(round)), len(codecs))
        return codecs[: last + 1]

    def _first_per_client(self) -> int:
        """Codecs before the first non-linear one are linear: what they encode is averaged before it is decoded."""
        codecs = self._hooks["encode"]
        return next((i for i, codec in enumerate(codecs) if not codec.linear), len(codecs))

    def _shared_codecs(self, round: Round) -> list[FederatedCallback]:
        """Those whose payloads are averaged encoded, and decoded once."""
        return self._codecs(round)[: self._first_per_client()]

    def _per_client_codecs(self, round: Round) -> list[FederatedCallback]:
        """Those whose payloads are decoded for each client."""
        return self._codecs(round)[self._first_per_client() :]


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
