"""The local loop: the only place where local steps are taken."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from lfl.callback import FederatedCallback, Gradient, check_gradient, overrides
from lfl.client.model import ClientModel
from lfl.client.optimizer import LocalOptimizer, may_change
from lfl.client.rates import LearningRates
from lfl.client.schedule import BatchPlan, Padding
from lfl.client.step import LocalStep, StepBatch, StepInput, StepResult
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.engine.feed import BatchFeed
from lfl.engine.frozen import FrozenModel
from lfl.engine.gradient import in_coordinates, loss_gradient, note_clients
from lfl.engine.logs import StepLogs
from lfl.engine.plain import frozen_features
from lfl.engine.steps import ALL, Descents, StepFunctions
from lfl.hooks import checked_gradient
from lfl.randomness import client_keys, fold
from lfl.round import Cohort, CohortPhase, Round

_FRACTIONS = 8  # the clients of a padded batch are a multiple of an eighth of the cohort: few shapes to record


class LocalEngine(ABC):
    """Trains cohorts of clients. Engines differ in how a step is computed and how many clients a cohort has.

    Args:
        model: the one model of all clients.
        data: the clients' data.
        work: the local work of a client in a round.
        callbacks: the stack of callbacks, in order.
        seed: seed of all draws.
        cohort_size: the largest number of clients of a cohort (C).

    Attributes:
        steps: the functions that compute a step.
        descents: which recorded steps may include the step of plain SGD; None for none, where batches have many shapes.
        padded_width: number of examples to which a batch is padded, 0 for no padding.
        is_wrapped: whether callbacks change gradients.
        has_loss_terms: whether callbacks add terms to the loss, which may read x.
    """

    name: Literal["sequential", "vectorized"]

    def __init__(
        self,
        model: ClientModel,
        data: FederatedData,
        work: LocalWork,
        callbacks: list[FederatedCallback],
        seed: int,
        cohort_size: int = 1,
    ) -> None:
        self.model = model
        self.data = data
        self.work = work
        self.seed = seed
        self.cohort_size = cohort_size
        self.descents: Descents | None = ALL
        self.padded_width = 0
        self.phase = 0  # of the local work, at the moment
        self._callbacks = callbacks
        self._starting = [c for c in callbacks if overrides(c, "on_cohort_start")]
        self._stepping = [c for c in callbacks if overrides(c, "on_step_end")]
        self.is_wrapped = any(overrides(c, "wrap_gradient") for c in callbacks)
        self.has_loss_terms = any(overrides(c, "client_loss") for c in callbacks)
        self._checked: set[int] = set()  # positions in the stack whose gradient functions have been checked
        self._buffer: Tensor | None = None  # memory of the last cohort's rows, to be used again
        self._optimizers: dict[int, tuple[Any, LocalOptimizer]] = {}  # by phase, with the settings they were built from
        self.trained = [model.names_of(phase.parameters) for phase in work.phases]
        like = model.parameters[0]
        self._masks = [None if names is None else model.layout.select(names).to(like) for names in self.trained]
        self.steps = StepFunctions(self.compute_step, self.pure_step, self.quick_step, len(work.phases))
        self._feed = BatchFeed(model, data, work, seed, callbacks)
        self.frozen = FrozenModel(model, data.batch_size, self._feed, self._read_features)

    # -- what engines implement -----------------------------------------------------------------------------------

    @abstractmethod
    def compute_step(self, params: Tensor, input: StepInput) -> StepResult:
        """Compute the gradients, losses and logged values of G clients with parameters [G, D]."""

    @abstractmethod
    def pure_step(self, params: Tensor, input: StepInput) -> StepResult:
        """``compute_step`` as a pure function of its arguments, which can be recorded."""

    @abstractmethod
    def quick_step(self, params: Tensor, input: StepInput) -> StepResult:
        """``pure_step`` in the way that is fastest without a recording."""

    @abstractmethod
    def _read_features(self, batch: Any, keys: Tensor, params: Tensor) -> dict[str, Tensor]:
        """Compute what loss terms read of a frozen model, x [D], or of one for each client [G, D]; only if some do."""

    @abstractmethod
    def order(self, ids: Tensor, num_steps: Tensor, sizes: Tensor) -> Tensor:
        """The order in which the clients of a round are put into cohorts, as positions in ``ids``."""

    @abstractmethod
    def deal(self, work: Tensor, num_processes: int) -> Tensor:
        """Divide clients among processes: from their expected work [M] to ranks [M], the same on all processes."""

    @abstractmethod
    def place(self, cohort: Cohort) -> None:
        """Load a cohort's parameters and random state into the module, if steps compute with its own."""

    @abstractmethod
    def collect(self, cohort: Cohort) -> None:
        """Read back into the cohort the buffers that training changed in the module."""

    # -- setting up -----------------------------------------------------------------------------------------------

    def global_features(
        self, batch: Any, keys: Tensor, anchor: Tensor, rows: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Features of frozen models for loss terms, on batches of G clients, ``[G, b, ...]`` by name; empty if none.

        Args:
            batch: a nest of tensors ``[G, b, ...]``.
            keys: one key per client [G].
            anchor: x [D].
            rows: those of the loss terms [G, ...], among which there may be further frozen models.
        """
        if not self.model.global_feature_names:
            return {}
        return frozen_features(self.model, anchor, rows or {}, lambda params: self._read_features(batch, keys, params))

    def start_round(self) -> None:
        """Build optimizers anew where the module's hooks may have changed what ``configure_optimizers`` returns."""
        if may_change(self.model.module):
            self._optimizers = {}

    # -- cohorts --------------------------------------------------------------------------------------------------

    def cohort(self, round: Round, ids: Tensor, buffers: Tensor, counters: list[Tensor]) -> Cohort:
        """Make a cohort of clients ``ids`` [C], not yet trained.

        Args:
            round: the round.
            ids: at most ``cohort_size`` clients, in the engine's order.
            buffers: the server's floating-point buffers [B].
            counters: the server's integer buffers.
        """
        cohort = Cohort(
            round=round,
            ids=ids,
            num_examples=self.data.client_sizes[ids],
            num_steps=self._num_steps(ids, round),
            values=self._memory_of(round, len(ids)),
            buffers=buffers.expand(len(ids), -1).clone(),  # clients change their rows: they must not share memory
            counters=[counter.expand(len(ids), *counter.shape) for counter in counters],
        )
        cohort.model = self.model
        if round.basis is None:
            cohort.values.copy_(cohort.start)
        else:
            cohort.values.zero_()
        return cohort

    def in_order(self, ids: Tensor, round: Round) -> Tensor:
        """Clients ``ids`` [n] in the order in which they are put into cohorts."""
        return ids[self.order(ids, self._num_steps(ids, round), self.data.client_sizes[ids])]

    def _num_steps(self, ids: Tensor, round: Round) -> Tensor:
        """Local steps of clients ``ids`` [n] in a round."""
        keys = self.work.keys(ids, self.seed, round.number)
        return self.work.num_steps(self.data.client_sizes[ids], self.data.batch_size, keys)

    def _memory_of(self, round: Round, count: int) -> Tensor:
        """Memory for the rows to train: parameters [C, D], or coordinates [C, R]. The next cohort uses it again."""
        width = round.server.numel() if round.basis is None else round.basis.rank
        if self._buffer is None or self._buffer.shape[0] < count or self._buffer.shape[1] != width:
            self._buffer = round.server.new_empty(count, width)
        return self._buffer[:count]

    def train(self, cohort: Cohort, rates: LearningRates) -> bool:
        """Do the local work of a cohort: its ``values`` and ``buffers`` become the trained ones.

        Returns:
            False if the device's memory was too small. Then nothing of the cohort has been kept, and ``cohort_size`` is
            halved for the rest of the run.

        Raises:
            torch.OutOfMemoryError: the memory is too small for one client.
        """
        try:
            self._train(cohort, rates)
            return True
        except torch.OutOfMemoryError:
            if len(cohort) == 1:
                raise
        # Outside of `except`: the exception's traceback keeps the tensors of the step alive, and is gone by now.
        self.cohort_size = len(cohort) // 2
        self._buffer = None
        self._optimizers = {}
        if cohort.values.device.type == "cuda":
            torch.cuda.empty_cache()
        return False

    def _train(self, cohort: Cohort, rates: LearningRates) -> None:
        # Where clients share the module, their buffers are the same and its own already, but maybe in other tensors
        # than those that recordings know.
        self.model.load_buffers(cohort.buffers[0], [rows[0] for rows in cohort.counters])
        self.place(cohort)
        logs = StepLogs(cohort)
        for callback in self._starting:
            callback.on_cohort_start(cohort)
        cohort.phases = [self._prepare(cohort, index, rates) for index in range(len(self.work.phases))]
        cohort.optimizer = cohort.phases[0].optimizer
        # A weak reference: a cohort that holds a reference to itself, and with it [C, D] numbers, is not freed before
        # the garbage collector looks for cycles.
        weak_cohort = weakref.proxy(cohort)
        cohort.full_gradient = lambda params: self._full_gradient(weak_cohort, params)
        gradient = self._compose(cohort)
        with self.model.recording():
            for phase in cohort.phases:
                cohort.optimizer = phase.optimizer
                self._train_phase(cohort, phase, gradient, logs)
        logs.finish()
        cohort.active = len(cohort)
        self.collect(cohort)

    def _prepare(self, cohort: Cohort, index: int, rates: LearningRates) -> CohortPhase:
        """Return phase ``index`` of the local work for a cohort, with an optimizer that has no state yet."""
        in_coordinates = cohort.round.basis is not None
        phase = self.work.phases[index]
        settings = (rates.of_phase(phase.lr, cohort.rate_factor), in_coordinates)
        built_from, optimizer = self._optimizers.get(index, (None, None))
        # An optimizer without a state is as good as a new one, and building one takes as long as some small steps.
        if optimizer is None or settings != built_from or not optimizer.restart(cohort.values):
            names = self.trained[index]
            optimizer = LocalOptimizer(self.model.module, self.model.layout, cohort.values, *settings, trained=names)
            self._optimizers[index] = (settings, optimizer)
        keys = self.work.keys(cohort.ids, self.seed, cohort.round.number)
        num_steps = phase.num_steps(cohort.num_examples, self.data.batch_size, keys)
        return CohortPhase(index, optimizer, num_steps, self._masks[index])

    def _compose(self, cohort: Cohort) -> Gradient:
        """Return the local gradient: that of the loss, wrapped by the callbacks in the order of the stack.

        If one callback owns the coordinates, those before it see parameters [A, D]; the owner and those behind it see
        coordinates [A, R]. The conversion is one more wrapper, just before the owner's own.
        """
        gradient = loss_gradient(cohort, self.steps.compute)
        cohort.origin = cohort.start
        for position, callback in enumerate(self._callbacks):
            if cohort.round.basis is not None and overrides(callback, "coordinates"):
                # Coordinates start at zero; callbacks from here on must not measure their distance from x.
                cohort.origin = cohort.values.new_zeros(1).expand_as(cohort.values)
                gradient = in_coordinates(cohort, gradient)
            if overrides(callback, "wrap_gradient"):
                wrapped = callback.wrap_gradient(cohort, gradient)
                if position not in self._checked and wrapped is not gradient:
                    check_gradient(callback, wrapped)
                    self._checked.add(position)
                gradient = wrapped if wrapped is gradient else checked_gradient(callback, wrapped)
        return gradient

    # -- local steps ----------------------------------------------------------------------------------------------

    def _train_phase(self, cohort: Cohort, phase: CohortPhase, gradient: Gradient, logs: StepLogs) -> None:
        """Take the steps of one phase; parameters that the phase does not train stay as they are."""
        may_descend = self._descends(cohort, phase)
        self.phase = phase.index
        with self.model.training_only(self.trained[phase.index]):
            for step in self._local_steps(cohort, phase, logs):
                cohort.step = step.number
                cohort.active = step.active
                if may_descend and self.descents is not None and self.descents.include(step):
                    self._descend(cohort, phase, step)
                else:
                    self._take_step(cohort, phase, gradient, step)
                for callback in self._stepping:
                    callback.on_step_end(cohort)

    def _local_steps(self, cohort: Cohort, phase: CohortPhase, logs: StepLogs) -> Iterator[LocalStep]:
        """Yield the steps of one phase, with their batches."""
        anchor = cohort.anchor
        is_random = self.model.traits.random_operations
        # If the model draws nothing, keys are not read and need not be computed; any [C] integers will do.
        keys = self._feed.keys("model", cohort, phase) if is_random else cohort.ids.to(cohort.values.device)
        batches = self._feed.of_phase(cohort, phase, self._padding(cohort, phase))
        with_features = self.frozen.reading_ahead(cohort, phase, batches)
        # Clients whose batches have different sizes at a step are in different batches: group them by step.
        for number, plans in itertools.groupby(with_features, key=lambda item: item[0].step):
            step_keys = fold(keys, number) if is_random else keys
            draws: list[list[StepBatch]] = [[] for _ in range(self._feed.batches_per_step)]
            for plan, batch, features in plans:
                batch_keys = step_keys[plan.rows]
                if plan.draw:
                    batch_keys = fold(batch_keys, plan.draw)
                if features is None:  # once a step, however many gradients callbacks ask for
                    features = self._global_features(cohort, plan, batch, batch_keys)
                draws[plan.draw].append(StepBatch(plan, batch, batch_keys, features))
            first, *others = draws
            active = first[0].plan.active
            yield LocalStep(number, phase.index, active, anchor, first, cohort.loss_rows, logs.add, others)

    def _global_features(self, cohort: Cohort, plan: BatchPlan, batch: Any, keys: Tensor) -> dict[str, Tensor]:
        rows = {name: rows[plan.rows] for name, rows in self.model.frozen_rows_in(cohort.loss_rows).items()}
        return self.global_features(batch, keys, cohort.anchor, rows)

    def _take_step(self, cohort: Cohort, phase: CohortPhase, gradient: Gradient, step: LocalStep) -> None:
        """Take one step: gradient, corrections, clipping, optimizer, in this order."""
        phase.optimizer.narrow(step.active)
        gradients = gradient(cohort.values[: step.active], step)
        if phase.trained is not None:
            # Corrections do not know which parameters are frozen; what they add there must not count in clipped norms.
            gradients.mul_(phase.trained)
        if phase.optimizer.steps_module:
            # The optimizer steps the module's own parameters. A callback's further pass may have bound others to it.
            self.model.bind(cohort.values[0])
        if self.work.clip_value is not None and (owned := phase.optimizer.owned) is not None:
            gradients.mul_(owned)  # as in Lightning, norms are of those that the optimizer has
        phase.optimizer.step(self.work.clip(gradients), self._missing(phase))

    def _missing(self, phase: CohortPhase) -> list[slice]:
        """Columns of the parameters that this step's loss did not reach: torch's optimizers leave those out."""
        missing = self.model.missing
        # Corrections give all parameters a gradient.
        if not missing or self.is_wrapped or not phase.optimizer.needs_gradients:
            return []
        return [self.model.layout.slices[name] for name in missing]

    @property
    def may_record_descents(self) -> bool:
        """Whether recorded steps may include the step of plain SGD: nobody looks at gradients in between."""
        return self.descents is not None and not self.is_wrapped

    def _descends(self, cohort: Cohort, phase: CohortPhase) -> bool:
        """Whether a recording can take the whole step: nothing else happens but ``values -= rate * gradient``."""
        return (
            self.may_record_descents
            and self.descents is not None
            and cohort.round.number >= self.descents.first_round
            and self.steps.are_recorded
            and cohort.round.basis is None
            and self.work.clip_value is None
            and phase.trained is None
            and phase.optimizer.plain_rate is not None
            and phase.optimizer.is_whole
        )

    def _descend(self, cohort: Cohort, phase: CohortPhase, step: LocalStep) -> None:
        """Take one recorded step of plain SGD."""
        rate = phase.optimizer.take_plain_step()
        for step_batch in step.batches:
            plan = step_batch.plan
            rows, input = cohort.values[plan.rows], step.input_of(step_batch)
            try:
                losses, logs = self.steps.descend(phase.index, rate, rows, input)
            except Exception as error:
                note_clients(error, cohort, plan)
                raise
            if not isinstance(plan.rows, slice):  # indexing by a tensor made a copy; a slice is a view
                cohort.values[plan.rows] = rows
            if step.log is not None:
                step.log(plan, losses, logs)

    def _padding(self, cohort: Cohort, phase: CohortPhase) -> Padding | None:
        """The padding of the batches of a phase; None for no padding."""
        if not self.padded_width:
            return None
        # Batches may include clients that have finished, with weight zero, so that shapes stay few. Their gradients are
        # zero, but momentum and weight decay would still move them: only the recorded step of plain SGD gets such rows.
        rows = -(-len(cohort) // _FRACTIONS) if self._descends(cohort, phase) else 1
        return Padding(self.padded_width, rows, cohort.values.dtype)

    def _full_gradient(self, cohort: Cohort, params: Tensor) -> Tensor:
        """Gradients [A, D] of the mean losses of the first A clients over their whole training sets."""
        count = len(params)
        total = torch.zeros_like(params)
        keys = client_keys(cohort.ids[:count].to(params.device), self.seed, "full gradient", cohort.round.number)
        with self.model.recording(), self.model.training_only(self.model.names_of(["*"])):
            for plan, batch in self._feed.of_all_examples(cohort, count, keys):
                batch_keys = fold(keys[plan.rows], plan.step)
                features = self._global_features(cohort, plan, batch, batch_keys)
                step_batch = StepBatch(plan, batch, batch_keys, features)
                # Without `log`: this pass is not training, and its losses must not be logged as such.
                step = LocalStep(plan.step, 0, count, cohort.anchor, [step_batch], cohort.loss_rows)
                result = self.steps.whole(params[plan.rows], step.input_of(step_batch))
                # The mean of a batch, times its size: the last batch of a client may be smaller.
                total[plan.rows] += result.gradients * plan.indices.shape[1]
        return total / cohort.num_examples[:count].to(params)[:, None]
