"""The loop over rounds, and the steps of a round. No algorithm is named here: callbacks change what a round does."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from lfl import hooks
from lfl.callback import overrides
from lfl.comm import Sent
from lfl.hooks import NonFiniteUpdateError
from lfl.round import Cohort, Round
from lfl.run import Run
from lfl.system import Answers
from lfl.upload import Upload


class FederatedLoop:
    """Runs the rounds of a run.

    Args:
        run: the run, after ``on_run_start``: whether clients keep state decides which process trains which client.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        # Only the callbacks that override a hook: the others cost nothing in a round.
        self._hooks = {name: [c for c in run.callbacks if overrides(c, name)] for name in _HOOKS}
        self._upload = Upload(run)
        self._state_at_home = run.store.is_used
        self._unlogged: OSError | None = None  # the first failure of a logger

    def run_rounds(self) -> None:
        """Run round after round, until the last one or until a stop is requested."""
        run = self.run
        stopping = any(run.processes.gather(run.stop_request.should_stop))
        first = run.progress.round + 1
        while run.progress.round < run.max_rounds and not stopping:
            # To a LightningModule a round is an epoch; what hooks log belongs to the round.
            run.progress.is_in_round = True
            logged = run.call_hook("on_train_epoch_start")
            round = self.run_round(run.progress.round + 1)
            logged |= run.call_hook("on_train_epoch_end")
            run.model.reset_metrics()
            run.progress.round = round.number
            run.progress.is_in_round = False
            metrics = {name: float(value) for name, value in {**logged, **round.metrics}.items()}
            # Before the checkpoint, which holds the rates of the next round.
            # A round without updates trains nobody, and so lacks what training logs.
            run.rates.step(round.number, metrics, bool(round.num_reported) and run.is_evaluation_due(round.number))
            if round.number == first:
                run.try_checkpoint()
            self._log(round.number, metrics)
            # In hooks `current_epoch` is the round's still, as in Lightning; now they are all done.
            run.lightning.end_round(run.is_evaluation_due(round.number))
            run.progress.epoch = round.number
            self._checkpoint(round.number, metrics)
            stopping = self._is_stopping(round)
        if run.checkpointing is not None:
            self._save(run.checkpointing.due_at_end(run.progress.round))
        self._raise_unlogged()

    def _is_stopping(self, round: Round) -> bool:
        """Whether the run ends after a finished round; the same on all processes."""
        run = self.run
        if run.processes.count == 1:
            return run.stop_request.should_stop
        # A signal may reach the processes in different rounds, so that the round's sums decide. Callbacks that saw the
        # finished round may decide later than those met.
        if run.lightning.watch:
            return any(run.processes.gather(run.stop_request.should_stop))
        return round.totals.num_stopping > 0

    def _raise_unlogged(self) -> None:
        run = self.run
        if (error := self._unlogged) is not None:
            path = run.folder / "checkpoints" / "last.ckpt"
            saved = f" Round {run.progress.round} is in {path}: go on with `--ckpt_path last`."
            raise OSError(error.errno, f"{error.strerror or error}{saved if run.checkpointing else ''}") from error

    def run_round(self, number: int) -> Round:
        """Select, download, train, encode, aggregate, decode, step the server, evaluate, log."""
        started = time.perf_counter()
        run = self.run
        run.training.start_round(number)
        run.rates.start_round()
        run.server.frozen = run.training.frozen
        round = self._select(number)
        self._download(round)
        for cohort in run.training.cohorts(round, run.server.buffers, run.server.counters):
            self._load_buffers(cohort)
            # False if the device ran out of memory, or the steps could not be taken in that way: `cohorts` then yields
            # the same clients again, in smaller cohorts or for another engine.
            if not run.training.train(cohort, run.rates):
                self._report_smaller_cohorts(len(cohort))
                continue
            hooks.check_rows(self._hooks["on_step_end"] or self._hooks["wrap_gradient"], cohort)
            # Before the upload: a hook of it might write NaN into the client store.
            self._drop_nonfinite(cohort)
            self._upload.add(cohort)
            run.display.clients_done(len(cohort.num_steps))
        self._upload.close(round)
        self._step(round)
        round.log("time/train_s", time.perf_counter() - started)
        self._evaluate(round)
        self._finish(round)
        round.log("time/round_s", time.perf_counter() - started)
        return round

    def _select(self, number: int) -> Round:
        """Choose the clients of a round, and prepare it on the server."""
        run = self.run
        chosen = run.participation.select(number, run.num_clients, run.seed)
        chosen = chosen if len(chosen) else chosen.long()  # `torch.tensor([])` is one of floats
        asked = run.participation.invited(chosen, number, run.num_clients, run.seed)
        # Clients without examples cannot train. Sorted, so that sums do not depend on the order of the draw.
        clients, invited = (ids[run.data.client_sizes[ids] > 0].sort().values for ids in (chosen, asked))
        # Before anybody is trained: those that will not answer are sent the model, and do nothing.
        answers = Answers.of_all(clients) if run.system is None else run.system.answers(clients, number, run.seed)
        clients, late, dropped = answers
        local = self._local(clients, number)
        # A copy of x: the server's vector moves at the end of the round, and hooks may compare the two.
        round = Round(number, clients, run.server.vector.clone(), local, invited, late=late, dropped=dropped)
        if round.num_lost and not len(clients):
            run.display.message(
                f"Nobody has answered in round {number} ({len(late)} late, {len(dropped)} dropped out): the server's "
                "model stays as it is."
            )
        round.sent_in = run.participation.sent_in(clients, number, run.num_clients, run.seed)
        run.display.round_started(number, len(round.local_clients))
        for callback in self._hooks["on_round_start"]:
            callback.on_round_start(round)
        for callback in self._hooks["coordinates"]:
            round.basis = callback.coordinates(round)
        self._upload.open()
        return round

    def _local(self, clients: Tensor, number: int) -> Tensor:
        """Those of a round's clients that this process trains: the clients whose state it keeps, or a fair share."""
        run = self.run
        processes = run.processes
        if processes.count == 1:
            return clients
        if self._state_at_home:
            return clients[processes.at_home(clients)]
        # A slot that was declared too late: clients have been trained, and left their rows, in whatever process.
        if run.store.is_used:
            raise RuntimeError(
                f"Client slots {', '.join(run.store.slots)} were declared in a round, after clients without state had "
                "been dealt to processes: declare them in `on_run_start`, or `federation.store.reserve(name)` there."
            )
        keys = run.work.keys(clients, run.seed, number)
        work = run.work.expected(run.data.client_sizes[clients], run.data.batch_size, keys)
        return clients[run.training.deal(work, processes.count) == processes.rank]

    def _download(self, round: Round) -> None:
        """Make the message to the clients of a round, and count what it costs to send.

        Clients that are late train on an earlier one, which has been kept for them.
        """
        run = self.run
        message = round.message
        run.ledger.start_round()
        message.add("model", round.server)
        if run.buffer_policy != "client" and run.server.buffers.numel():
            message.add("buffers", run.server.buffers)
        for callback in self._hooks["on_download"]:
            callback.on_download(message)
        run.ledger.download(message, round.invited, round.number)
        round.earlier = run.outbox.of(round.sent_in)
        awaited = run.participation.awaited(round.number, run.num_clients, run.seed)
        run.outbox.keep(round.number, Sent(round.server, message.contents), awaited)

    def _load_buffers(self, cohort: Cohort) -> None:
        if self.run.buffer_policy == "client":
            cohort.buffers = self.run.client_buffers(cohort.ids)

    def _report_smaller_cohorts(self, size: int) -> None:
        if self.run.engine.cohort_size < size // 2:  # another engine, which says so itself
            return
        self.run.display.message(
            f"Out of memory with {size} clients trained together: going on with {self.run.engine.cohort_size}."
        )

    def _drop_nonfinite(self, cohort: Cohort) -> None:
        """Drop the clients whose update has NaN or inf, or raise; nothing of them reaches the server or the store."""
        # A row with NaN or inf has a sum that is not finite, so one sum per row is enough to find that all is well. The
        # sum of a finite row may still overflow: only if a sum is not finite are all values looked at.
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

    def _step(self, round: Round) -> None:
        """Move the server's model, and record what it costs a client that missed the round to catch up."""
        run = self.run
        if round.update is not None:
            run.server.step(round.update)
            hooks.check_server(["server_optimizer"], round, run.server.vector)
        for callback in self._hooks["on_server_step"]:
            callback.on_server_step(round)
        if self._hooks["on_server_step"]:
            owners = [f"{type(callback).__name__}.on_server_step" for callback in self._hooks["on_server_step"]]
            hooks.check_server(owners, round, run.server.vector)
        run.ledger.record_increment("model", self._step_bits(round), round.number)

    def _step_bits(self, round: Round) -> int:
        """Bits from which clients that hold x follow the server's step."""
        run = self.run
        if round.step_bits is not None:
            return round.step_bits
        # With plain SGD the model moved in the basis, which clients know: its coordinates are enough. Any other server
        # optimizer (momentum, Adam) may leave the basis, and the whole model must be sent.
        sent = round.update_coordinates if run.server.is_plain_sgd else None
        return run.ledger.bits_of(round.server if sent is None else sent)

    def _evaluate(self, round: Round) -> None:
        """Log what the training steps logged, and evaluate the server's model if it is due."""
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
        """Log the counts of a round, and call ``on_round_end``."""
        run = self.run
        progress = run.progress
        round.log("lr", run.rates.lr)
        round.log("clients", float(round.num_reported))
        if run.work.varies and round.num_reported:
            round.log("local_epochs", round.totals.epochs / round.num_reported)
        # From the first refused update on, in every round: a run without any has no such column.
        if round.num_refused or progress.refused:
            progress.refused += round.num_refused
            round.log("clients_refused", float(round.num_refused))
        for name, value in run.ledger.metrics().items():
            round.log(name, value)
        self._advance_clock(round)
        for name, value in run.participation.metrics(round.number, run.num_clients, run.seed).items():
            round.log(name, value)
        for callback in self._hooks["on_round_end"]:
            callback.on_round_end(round)
        run.lightning.publish(round.metrics)

    def _advance_clock(self, round: Round) -> None:
        """Add the simulated seconds of a round, and log who was lost in it; a round that asked nobody takes no time."""
        run = self.run
        if run.system is None:
            return
        if run.system.loses_clients:
            round.log("clients_late", float(len(round.late)))
            round.log("clients_dropped", float(len(round.dropped)))
        if not len(round.clients) + round.num_lost:
            return
        sent = round.totals.uplink_bits
        sent = torch.zeros(len(round.clients), dtype=torch.float64) if sent is None else sent.cpu()
        received = run.ledger.received_bits.double()
        seconds = run.participation.seconds(round.number, run.num_clients, run.seed, sent, received)
        if seconds is None:
            own = received[torch.searchsorted(round.invited, round.clients)]
            seconds = run.system.round_seconds(round.clients, sent, round.number, run.seed, own, round.num_lost)
        total = run.progress.simulated_seconds
        for name, value in seconds.items():
            total[name] = total.get(name, 0.0) + value
            round.log(f"sim/{name}", total[name])

    def _log(self, round_number: int, metrics: dict[str, float]) -> None:
        """Log a finished round."""
        run = self.run
        # Logged before the checkpoint: a resumed run copies the rows of all rounds up to its checkpoint's, and a run
        # that is killed between the two must not lack one.
        run.lightning.publish(metrics)
        for logger in run.loggers if run.processes.is_first and run.is_logging_due(round_number) else ():
            try:
                logger.log_metrics(metrics, step=round_number)
                logger.save()
            except OSError as error:
                # What memory holds is worth a checkpoint, perhaps on another disk than the log: stop as for a signal.
                self._unlogged = self._unlogged or error
                run.stop()
        run.summary.update(round_number, metrics, run.directions)
        run.display.round_done(round_number, metrics)

    def _checkpoint(self, round_number: int, metrics: dict[str, float]) -> None:
        """Write the checkpoints that are due after a round, and those that were asked for in it."""
        run = self.run
        run.save_wanted()
        if run.checkpointing is not None:
            is_final = round_number == run.max_rounds
            self._save(run.checkpointing.due_after(round_number, metrics, is_final, run.directions))

    def _save(self, names: list[str]) -> None:
        try:
            for name in names:
                self.run.save(self.run.folder / "checkpoints" / name)
        except OSError as error:
            if self._unlogged is None:
                raise
            raise self._unlogged from error  # the first to fail


_HOOKS = (
    "on_round_start",
    "coordinates",
    "on_download",
    "wrap_gradient",
    "on_step_end",
    "on_server_step",
    "on_round_end",
)
