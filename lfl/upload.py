"""The way up: what clients send is encoded, counted, decoded and added up, and becomes the update of a round."""

from __future__ import annotations

import torch
from torch import Tensor

from lfl import hooks
from lfl.callback import FederatedCallback, overrides
from lfl.comm import Payload
from lfl.processes.sums import ProcessSums
from lfl.round import Cohort, Round, add_to
from lfl.run import Run


class Upload:
    """Takes what the cohorts of a round send. The server keeps sums only, and nothing of a single client.

    Args:
        run: the run; its callbacks may be codecs, its ledger counts, its aggregator adds up.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._ending, self._encoding, self._aggregating = (
            [callback for callback in run.callbacks if overrides(callback, hook)]
            for hook in ("on_cohort_end", "encode", "on_aggregate")
        )
        self._sums = ProcessSums(run.processes)
        self._widths: dict[FederatedCallback | None, int] = {}  # of what codecs, and the aggregator (None), were given

    def open(self) -> None:
        """Begin a round."""
        self.run.aggregator.start()
        self._widths = {}

    def add(self, cohort: Cohort) -> None:
        """Count what the clients of a cohort send (encoded updates, extra payloads, buffers), and add it up."""
        if not len(cohort):
            return
        run = self.run
        round = cohort.round
        totals = round.totals
        # Before the update is read: a hook may still change it, and adds the extra payloads.
        for callback in self._ending:
            with run.store.claimed_by(callback):
                hooks.end_cohort(callback, cohort)
        payload = Payload.dense(cohort.delta)
        codecs = self._codecs(round)
        for callback in codecs:
            self._widths[callback] = payload.values.shape[1]
            with run.store.claimed_by(callback):
                payload = hooks.encode(callback, cohort, payload)
        run.ledger.upload("update", payload)
        rows = payload.values
        # Only the codecs from the first non-linear one on; those before it decode the aggregate, once.
        for callback in reversed(self._per_client_codecs(round)):
            rows = hooks.decode(callback, round, rows, self._widths[callback])
        self._widths[None] = rows.shape[1]
        hooks.check_sent(self._ending + codecs, cohort, rows)
        rows = run.aggregator.on_arrival(rows, cohort.staleness, cohort.start, round.server)
        weights = run.aggregator.weights(cohort.num_examples)
        run.aggregator.add_clients(rows, weights, cohort.places, len(round.clients))
        sent = payload.bits_per_client()
        for name, extra in cohort.uploads.items():
            payload = Payload(extra, cohort.upload_bits.get(name, run.ledger.bits_of(extra[0])))
            run.ledger.upload(name, payload)
            sent = sent + payload.bits_per_client()
            add_to(totals.received, name, extra.sum(dim=0, dtype=torch.float64))
        if cohort.losses is not None:
            totals.losses = cohort.losses.sum() if totals.losses is None else totals.losses + cohort.losses.sum()
        for name, logged in cohort.metrics.items():
            add_to(totals.logged, name, logged.sum())
        totals.num_reported += len(cohort)
        if run.work.varies:
            totals.epochs += run.work.epochs(cohort.num_steps, cohort.num_examples, run.data.batch_size)
        round.reported.append(cohort.ids)
        sent = sent + self._add_buffers(cohort, weights)
        if run.system is not None:
            self._add_uplink_bits(cohort, sent)

    def _add_uplink_bits(self, cohort: Cohort, sent: Tensor) -> None:
        """Add the bits [C] that the clients of a cohort have sent, for the simulated system."""
        round = cohort.round
        # At the client's place in the round, so that processes can add up their vectors.
        bits = torch.zeros(len(round.clients), dtype=torch.float64)
        bits[cohort.places] = sent.double().cpu()
        round.totals.uplink_bits = bits if round.totals.uplink_bits is None else round.totals.uplink_bits + bits

    def _add_buffers(self, cohort: Cohort, weights: Tensor) -> int:
        """Send or keep the buffers of a cohort, as the buffer policy says; returns the bits that each client sends.

        ``weights`` [C] are those of the updates.
        """
        run = self.run
        totals = cohort.round.totals
        if run.buffer_policy == "client" and cohort.buffers.numel():
            run.store.scatter("buffers", cohort.ids, cohort.buffers)
        if run.buffer_policy != "average":
            return 0
        if cohort.counters:
            largest = torch.cat([rows.amax(dim=0).double().reshape(-1) for rows in cohort.counters])
            totals.counters = largest if totals.counters is None else torch.maximum(totals.counters, largest)
        if not cohort.buffers.numel():
            return 0
        payload = Payload.dense(cohort.buffers)
        run.ledger.upload("buffers", payload)
        # Differences are averaged, so that a buffer that no client changes stays exactly what it is.
        moved = (cohort.buffers - run.server.buffers).double()
        weights = weights.to(moved.device)
        weighted = torch.cat([weights @ moved, weights.sum().reshape(1)])  # the last entry is the sum of weights
        totals.buffers = weighted if totals.buffers is None else totals.buffers + weighted
        return int(payload.bits)

    def close(self, round: Round) -> None:
        """Add up the sums of all processes, and compute the update of the round from them."""
        run = self.run
        totals = round.totals
        # What the ledger and the aggregator have counted in this process travels in the same all-reduce.
        totals.num_stopping = int(run.stop_request.should_stop)
        totals.up_bits = run.ledger.up_bits
        totals.aggregate = run.aggregator.sums
        totals.counters = self._as_row(totals.counters)
        round.totals = totals = totals.join(self._sums, round.server.device)
        run.aggregator.sums = totals.aggregate
        run.ledger.close_round(totals.up_bits)
        if totals.buffers is not None:
            run.server.move_buffers(totals.buffers[:-1] / totals.buffers[-1])
        if totals.counters is not None:
            rows = totals.counters
            run.server.set_counters(rows[rows[:, 0] > 0, 1:].amax(dim=0))
        # All clients were dropped, or the round had none: there is no update, and the server stays where it is.
        if not totals.num_reported:
            return
        update, maker = run.aggregator.result(), f"{type(run.aggregator).__name__}.result"
        for name, value in run.aggregator.metrics().items():
            round.log(name, value)
        hooks.check_update(maker, "the aggregate", round, update, self._widths.get(None))
        update = update.to(round.server.dtype)
        for callback in reversed(self._shared_codecs(round)):
            update, maker = hooks.decode(callback, round, update, self._widths.get(callback)), type(callback).__name__
        width = len(round.server) if round.basis is None else round.basis.rank
        hooks.check_update(maker, "the decoded aggregate", round, update, width)
        if round.basis is not None:
            round.update_coordinates = update
            update = round.basis.lift(update)
        round.update = update
        for callback in self._aggregating:
            hooks.aggregate(callback, round)

    def _as_row(self, counters: Tensor | None) -> Tensor | None:
        """This process's largest counters [n] as one row of a matrix [W, 1 + n], the other rows zero.

        The sum over the W processes then has a row of each, and the maximum can be taken. The first column is 1 in the
        rows of processes that have counters.
        """
        if counters is None:
            return None
        rows = counters.new_zeros(self.run.processes.count, 1 + len(counters))
        rows[self.run.processes.rank] = torch.cat([counters.new_ones(1), counters])
        return rows

    def _codecs(self, round: Round) -> list[FederatedCallback]:
        """The codecs of a round, up to the first that keeps its payload from the codecs behind it."""
        codecs = self._encoding
        last = next((i for i, codec in enumerate(codecs) if codec.ends_encoding(round)), len(codecs))
        return codecs[: last + 1]

    def _first_per_client(self) -> int:
        """Index of the first codec whose payloads must be decoded for each client: the first non-linear one.

        The mean of what linear codecs encode is what they would encode of the mean, so it can be decoded once. An
        aggregate that is no such mean needs all of them decoded.
        """
        if self.run.aggregator.decoded:
            return 0
        codecs = self._encoding
        return next((i for i, codec in enumerate(codecs) if not codec.linear), len(codecs))

    def _shared_codecs(self, round: Round) -> list[FederatedCallback]:
        """The codecs whose payloads are averaged while encoded, and decoded once."""
        return self._codecs(round)[: self._first_per_client()]

    def _per_client_codecs(self, round: Round) -> list[FederatedCallback]:
        """The codecs whose payloads are decoded for each client."""
        return self._codecs(round)[self._first_per_client() :]
