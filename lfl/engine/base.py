"""The local loop: the only place where local steps are taken."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lfl.callback import FederatedCallback, Gradient, check_gradient, overrides
from lfl.client.model import ClientModel
from lfl.client.optimizer import LocalOptimizer
from lfl.client.rates import LearningRates
from lfl.client.schedule import Padding
from lfl.client.step import LocalStep, StepBatch, StepFunction, StepInput, StepResult
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.engine.feed import BatchFeed
from lfl.engine.frozen import FrozenModel
from lfl.engine.gradient import in_coordinates, loss_gradient, note_clients
from lfl.engine.graph.compiled import CompiledStep
from lfl.engine.graph.traced import TracedStep
from lfl.engine.logs import StepLogs
from lfl.randomness import client_keys, fold
from lfl.round import Cohort, CohortPhase, Round

_FRACTIONS = 8  # a padded batch has the cohort's clients, or so many eighths of them


class LocalEngine(ABC):
    """Trains cohorts of clients. Engines differ in how a step is computed and how many clients a cohort has.

    Args:
        model: the one model of all clients.
        data: the clients' data.
        work: local work of a round.
        callbacks: the stack.
        seed: of all draws.
        cohort_size: the largest number of clients of a cohort (C).

    Attributes:
        step_functions: how a step is computed, one function per phase of the local work.
        may_descend: whether the shapes of batches are few, so that recorded steps may include the step of plain SGD.
        padded_width: examples that a batch is padded to, 0 for none.
        compiles: whether steps are recorded and compiled.
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
        # Recordings are kept by phase: which parameters are frozen is part of what is recorded.
        self.step_functions: list[StepFunction] = [self.compute_step for _ in work.phases]
        self._whole_step: StepFunction = self.compute_step  # in passes over all examples, where nothing is frozen
        self.may_descend = True
        self.padded_width = 0
        self.compiles = False
        self._callbacks = callbacks
        self._starting = [c for c in callbacks if overrides(c, "on_cohort_start")]
        self._stepping = [c for c in callbacks if overrides(c, "on_step_end")]
        self._is_wrapped = any(overrides(c, "wrap_gradient") for c in callbacks)
        self._checked: set[int] = set()  # places in the stack of callbacks whose gradient functions take a step
        self._buffer: Tensor | None = None  # the rows of the last cohort, to be used again
        self._optimizers: dict[int, tuple[Any, LocalOptimizer]] = {}  # by phase, with what they were built from
        self._trained = [model.names_of(phase.parameters) for phase in work.phases]
        like = model.parameters[0]
        self._masks = [None if names is None else model.layout.select(names).to(like) for names in self._trained]
        self._feed = BatchFeed(model, data, work, seed)
        self._frozen = FrozenModel(model, data.batch_size, self.global_features)

    # -- what an engine is ----------------------------------------------------------------------------------------

    @abstractmethod
    def compute_step(self, params: Tensor, input: StepInput) -> StepResult:
        """Gradients, losses and logged values of G clients with parameters [G, D]."""

    @abstractmethod
    def pure_step(self, params: Tensor, input: StepInput) -> StepResult:
        """``compute_step`` as a pure function of its arguments, which can be recorded."""

    @abstractmethod
    def _global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        """The pass of the model at x, where some loss term reads of it."""

    @abstractmethod
    def order(self, ids: Tensor, num_steps: Tensor, sizes: Tensor) -> Tensor:
        """The order in which the clients of a round are put into cohorts, as positions in ``ids``."""

    @abstractmethod
    def deal(self, work: Tensor, num_processes: int) -> Tensor:
        """The process that trains each client [M], from the clients' expected work [M]; the same on all processes."""

    @abstractmethod
    def place(self, cohort: Cohort) -> None:
        """Put a cohort's parameters, buffers and random state into the model, where it computes with its own."""

    @abstractmethod
    def collect(self, cohort: Cohort) -> None:
        """Take the buffers that training left in the model."""

    # -- setting up -----------------------------------------------------------------------------------------------

    def alike(self, work: LocalWork, callbacks: list[FederatedCallback], seed: int) -> Self:
        """An engine of the same kind, with the same cohorts, for other work on the same model and data."""
        engine = type(self)(self.model, self.data, work, callbacks, seed, self.cohort_size)
        engine.may_descend, engine.padded_width = self.may_descend, self.padded_width
        if isinstance(self._whole_step, TracedStep):
            engine.trace_steps(self.compiles)
        return engine

    def trace_steps(self, compile: bool = False) -> None:
        """Record the step once for each shape of batch, and replay it from then on, compiled or as it is."""
        kind = CompiledStep if compile else TracedStep
        self.step_functions = [kind(self.pure_step) for _ in self.work.phases]
        self._whole_step = kind(self.pure_step)
        self.compiles = compile

    def try_step(self, params: Tensor, input: StepInput) -> None:
        """Take a step of G clients as it will be taken, on the side: for timing."""
        if self.padded_width:
            size = next(leaf.shape[1] for leaf in tree_leaves(input.batch) if isinstance(leaf, Tensor))
            input = input._replace(weights=params.new_full((len(params), size), 1 / size))
        function = self.step_functions[0]
        if isinstance(function, TracedStep) and self._may_record_descents:
            function.descend(0.0, params, input)
        else:
            params -= 0.0 * function(params, input).gradients

    def global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        """What the loss terms read of the model at x [D], for G clients' batches: outputs ``[G, b, ...]`` by name."""
        return self._global_features(batch, keys, anchor) if self.model.global_feature_names else {}

    # -- cohorts --------------------------------------------------------------------------------------------------

    def cohorts(self, round: Round, buffers: Tensor, counters: list[Tensor]) -> Iterator[Cohort]:
        """Deal ``round.local_clients`` into cohorts, not yet trained.

        Args:
            round: the round.
            buffers: the server's floating-point buffers [B].
            counters: the server's integer buffers.
        """
        clients = round.local_clients
        sizes = self.data.client_sizes[clients]
        num_steps = self.work.num_steps(sizes, self.data.batch_size)
        waiting = self.order(clients, num_steps, sizes)
        while len(waiting):
            chosen = waiting[: self.cohort_size]
            count, before = len(chosen), self.cohort_size
            cohort = Cohort(
                round=round,
                ids=clients[chosen],
                num_examples=sizes[chosen],
                num_steps=num_steps[chosen],
                values=self._starting_point(round, count),
                buffers=buffers.expand(count, -1).clone(),
                counters=[counter.expand(count, *counter.shape) for counter in counters],
            )
            cohort.model = self.model
            yield cohort
            # If the device has refused this cohort, its clients come again, fewer at a time.
            if self.cohort_size == before:
                waiting = waiting[count:]

    def _starting_point(self, round: Round, count: int) -> Tensor:
        """Rows to train, [C, D] at x or coordinates [C, R] at zero; the next cohort uses the same memory."""
        width = round.server.numel() if round.basis is None else round.basis.rank
        if self._buffer is None or self._buffer.shape[0] < count or self._buffer.shape[1] != width:
            self._buffer = round.server.new_empty(count, width)
        values = self._buffer[:count]
        return values.copy_(round.server) if round.basis is None else values.zero_()

    def train(self, cohort: Cohort, rates: LearningRates) -> bool:
        """Do the local work of a cohort: ``values`` and ``buffers`` become the trained ones.

        Returns:
            False where the device's memory was too small. Then nothing of the cohort has been kept, ``cohort_size`` is
            halved from here on, and ``cohorts`` deals the same clients again.

        Raises:
            torch.OutOfMemoryError: the memory is too small for one client.
        """
        try:
            self._train(cohort, rates)
            return True
        except torch.OutOfMemoryError:
            if len(cohort) == 1:
                raise
        # Outside of `except`: the traceback holds the tensors of the step, and is gone by now.
        self.cohort_size = len(cohort) // 2
        self._buffer = None
        self._optimizers = {}
        if cohort.values.device.type == "cuda":
            torch.cuda.empty_cache()
        return False

    def _train(self, cohort: Cohort, rates: LearningRates) -> None:
        self.place(cohort)
        logs = StepLogs(cohort)
        for callback in self._starting:
            callback.on_cohort_start(cohort)
        cohort.phases = [self._prepare(cohort, index, rates) for index in range(len(self.work.phases))]
        cohort.optimizer = cohort.phases[0].optimizer
        # Weakly: a cohort that refers to itself would keep its rows until the garbage collector comes by.
        this = weakref.proxy(cohort)
        cohort.full_gradient = lambda params: self._full_gradient(this, params)
        gradient = self._compose(cohort)
        with self.model.recording():
            for phase in cohort.phases:
                cohort.optimizer = phase.optimizer
                self._train_phase(cohort, phase, gradient, logs)
        logs.finish()
        cohort.active = len(cohort)
        self.collect(cohort)

    def _prepare(self, cohort: Cohort, index: int, rates: LearningRates) -> CohortPhase:
        """A phase of a cohort's work, with a fresh optimizer."""
        in_coordinates = cohort.round.basis is not None
        work, names = self.work.phases[index], self._trained[index]
        settings = (rates.of_phase(work.lr), in_coordinates)
        known, optimizer = self._optimizers.get(index, (None, None))
        # An optimizer without a state is as good as a fresh one; building one takes as long as some small steps.
        if optimizer is None or settings != known or not optimizer.restart(cohort.values):
            optimizer = LocalOptimizer(self.model.module, self.model.layout, cohort.values, *settings, trained=names)
            self._optimizers[index] = (settings, optimizer)
        num_steps = work.num_steps(cohort.num_examples, self.data.batch_size)
        return CohortPhase(index, optimizer, num_steps, self._masks[index])

    def _compose(self, cohort: Cohort) -> Gradient:
        """The local gradient: that of the loss, wrapped by the callbacks in the order of the stack.

        Where a callback owns coordinates, those before it see parameters [A, D], and it and those behind it
        coordinates [A, R]: the change from one to the other is one more wrapper, just before the owner's own.
        """
        gradient = loss_gradient(cohort, self.step_functions)
        cohort.origin = cohort.round.server
        for place, callback in enumerate(self._callbacks):
            if cohort.round.basis is not None and overrides(callback, "coordinates"):
                cohort.origin = cohort.values.new_zeros(cohort.values.shape[1])
                gradient = in_coordinates(cohort, gradient)
            if overrides(callback, "wrap_gradient"):
                wrapped = callback.wrap_gradient(cohort, gradient)
                if place not in self._checked and wrapped is not gradient:
                    check_gradient(callback, wrapped)
                    self._checked.add(place)
                gradient = wrapped
        return gradient

    # -- local steps ----------------------------------------------------------------------------------------------

    def _train_phase(self, cohort: Cohort, phase: CohortPhase, gradient: Gradient, logs: StepLogs) -> None:
        """Take the steps of one phase; parameters it does not train are left alone."""
        descends = self._descends(cohort, phase)
        with self.model.training_only(self._trained[phase.index]):
            for step in self._local_steps(cohort, phase, logs):
                cohort.step, cohort.active = step.number, step.active
                if descends:
                    self._descend(cohort, phase, step)
                else:
                    self._take_step(cohort, phase, gradient, step)
                for callback in self._stepping:
                    callback.on_step_end(cohort)

    def _local_steps(self, cohort: Cohort, phase: CohortPhase, logs: StepLogs) -> Iterator[LocalStep]:
        """The steps of one phase, with their batches."""
        server = cohort.round.server
        is_random = bool(self.model.random_operations)
        # Where nothing is drawn nobody reads the keys: the ids stand in for them.
        keys = self._feed.keys("model", cohort, phase) if is_random else cohort.ids.to(cohort.values.device)
        batches = self._feed.of_phase(cohort, phase, self._padding(cohort, phase))
        with_features = self._frozen.reading_ahead(cohort, batches)
        for number, plans in itertools.groupby(with_features, key=lambda item: item[0].step):
            step_keys = fold(keys, number) if is_random else keys
            parts = []
            for plan, batch, features in plans:
                own_keys = step_keys[plan.rows]
                if features is None:  # read once a step, however often its gradient is asked for
                    features = self.global_features(batch, own_keys, server)
                parts.append(StepBatch(plan, batch, own_keys, features))
            yield LocalStep(number, phase.index, parts[0].plan.active, server, parts, cohort.loss_rows, logs.add)

    def _take_step(self, cohort: Cohort, phase: CohortPhase, gradient: Gradient, step: LocalStep) -> None:
        phase.optimizer.narrow(step.active)
        gradients = gradient(cohort.values[: step.active], step)
        if phase.trained is not None:  # what corrections add to frozen ones must not count in a norm
            gradients.mul_(phase.trained)
        if phase.optimizer.steps_module:  # another pass of this step may have bound other parameters
            self.model.bind(cohort.values[0])
        phase.optimizer.step(self.work.clip(gradients))

    @property
    def _may_record_descents(self) -> bool:
        return self.may_descend and not self._is_wrapped

    def _descends(self, cohort: Cohort, phase: CohortPhase) -> bool:
        """Whether a recorded step can do all: nothing comes between the gradient and ``values -= rate * gradient``."""
        return (
            self._may_record_descents
            and isinstance(self.step_functions[phase.index], TracedStep)
            and cohort.round.basis is None
            and self.work.clip_value is None
            and phase.trained is None
            and phase.optimizer.plain_rate is not None
        )

    def _descend(self, cohort: Cohort, phase: CohortPhase, step: LocalStep) -> None:
        """Take one recorded step of plain SGD."""
        function = self.step_functions[phase.index]
        assert isinstance(function, TracedStep)
        rate = phase.optimizer.take_plain_step()
        for part in step.batches:
            plan = part.plan
            rows = cohort.values[plan.rows]
            try:
                losses, logs = function.descend(rate, rows, step.input_of(part))
            except Exception as error:
                note_clients(error, cohort, plan)
                raise
            if not isinstance(plan.rows, slice):  # then the rows are a copy, and no view
                cohort.values[plan.rows] = rows
            if step.log is not None:
                step.log(plan, losses, logs)

    def _padding(self, cohort: Cohort, phase: CohortPhase) -> Padding | None:
        """How batches are padded."""
        if not self.padded_width:
            return None
        # Rows of clients that are done keep the shapes few. A gradient of theirs is zero, but an optimizer would move
        # them all the same (momentum, weight decay): only the recorded step of plain SGD is given such rows.
        rows = -(-len(cohort) // _FRACTIONS) if self._descends(cohort, phase) else 1
        return Padding(self.padded_width, rows, cohort.values.dtype)

    def _full_gradient(self, cohort: Cohort, params: Tensor) -> Tensor:
        """Gradients [A, D] of the mean loss over the whole training sets of the first A clients."""
        count, server = len(params), cohort.round.server
        total = torch.zeros_like(params)
        keys = client_keys(cohort.ids[:count].to(params.device), self.seed, "full gradient", cohort.round.number)
        with self.model.recording(), self.model.training_only(None):
            for plan, batch in self._feed.of_all_examples(cohort, count, keys):
                own_keys = fold(keys[plan.rows], plan.step)
                part = StepBatch(plan, batch, own_keys, self.global_features(batch, own_keys, server))
                step = LocalStep(plan.step, 0, count, server, [part], cohort.loss_rows)
                result = self._whole_step(params[plan.rows], step.input_of(part))
                total[plan.rows] += result.gradients * plan.indices.shape[1]
        return total / cohort.num_examples[:count].to(params)[:, None]
