"""The local loop: the only place where local steps are taken."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lfl.callback import FederatedCallback, Gradient, overrides
from lfl.client.model import ClientModel
from lfl.client.optimizer import LocalOptimizer
from lfl.client.rates import LearningRates
from lfl.client.schedule import BatchPlan, LocalSchedule, Padding, ReplacementSchedule, steps_per_epoch_of
from lfl.client.step import NO_EXTRAS, Extras
from lfl.client.work import LocalWork
from lfl.data.base import FederatedData
from lfl.engine.frozen import FrozenModel
from lfl.engine.graph.compiled import CompiledStep
from lfl.engine.graph.traced import TracedStep
from lfl.engine.logs import StepLogs
from lfl.randomness import client_keys, fold
from lfl.round import Cohort, Phase, Round

_WHOLE_BATCH = 128  # examples at a time in a pass over a client's whole data
_FRACTIONS = 8  # a padded batch has the cohort's clients, or so many eighths of them


class LocalEngine(ABC):
    """Trains cohorts of clients. Engines differ in how a gradient is computed and how many clients a cohort has.

    Args:
        model: the one model.
        data: the clients' data.
        work: local work of a round.
        callbacks: the stack.
        seed: of all draws.
        cohort_size: the largest C.

    Attributes:
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
        self.model, self.data, self.work, self.seed, self.cohort_size = model, data, work, seed, cohort_size
        self._callbacks = callbacks
        self._starting = [c for c in callbacks if overrides(c, "on_cohort_start")]
        self._stepping = [c for c in callbacks if overrides(c, "on_step_end")]
        self._buffer: Tensor | None = None
        self._optimizers: dict[int, tuple[Any, LocalOptimizer]] = {}  # by phase, with what they were built from
        self._trained = [model.names_of(phase.parameters) for phase in work.phases]
        like = model.parameters[0]
        self._masks = [None if names is None else model.layout.select(names).to(like) for names in self._trained]
        self._phase = 0
        self._plans: list[tuple[BatchPlan, Any]] = []
        self._global: list[dict[str, Tensor]] = []  # features of the model at x, for each of the plans
        self._keys = torch.zeros(1, dtype=torch.int64)
        self._recording = False
        self._frozen = FrozenModel(model, data.batch_size, self.global_features)
        self._logs = StepLogs()
        self._traced: list[TracedStep] | None = None
        self.compiles = False
        self._is_wrapped = any(overrides(c, "wrap_gradient") for c in callbacks)
        self.may_descend = True
        self.padded_width = 0

    @abstractmethod
    def gradients(
        self, params: Tensor, batch: Any, step: int, keys: Tensor, anchor: Tensor, extras: Extras, *weights: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Gradients [G, D], losses [G] and logged values [G] of G clients on a batch ``[G, b, ...]``.

        With ``weights`` [G, b] the batch is padded, and they are those of its examples in the loss of their client.
        """

    @abstractmethod
    def functional_gradients(
        self, params: Tensor, batch: Any, step: int, keys: Tensor, anchor: Tensor, extras: Extras, *weights: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """``gradients`` as a function of its arguments alone, which can be recorded."""

    def alike(self, work: LocalWork, callbacks: list[FederatedCallback], seed: int) -> Self:
        """An engine of the same kind, with the same cohorts, for other work on the same model and data."""
        engine = type(self)(self.model, self.data, work, callbacks, seed, self.cohort_size)
        engine.may_descend, engine.padded_width = self.may_descend, self.padded_width
        if self._traced is not None:
            engine.trace_steps(self.compiles)
        return engine

    def trace_steps(self, compile: bool = False) -> None:
        """Record the step once for each shape of batch, and replay it from then on, compiled or as it is."""

        def step(
            params: Tensor, batch: Any, keys: Tensor, anchor: Tensor, extras: Extras, *weights: Tensor
        ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            return self.functional_gradients(params, batch, 0, keys, anchor, extras, *weights)

        self.compiles = compile
        kind = CompiledStep if compile else TracedStep
        self._traced = [kind(step) for _ in self.work.phases]

    def global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        """What the loss terms read of the model at x [D], for G clients' batches: outputs ``[G, b, ...]`` by name."""
        return self._global_features(batch, keys, anchor) if self.model.global_feature_names else {}

    @abstractmethod
    def _global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        """The pass of the model at x, where some loss term reads of it."""

    @abstractmethod
    def order(self, ids: Tensor, num_steps: Tensor, sizes: Tensor) -> Tensor:
        """The order in which the clients of a round are put into cohorts, as positions in ``ids``."""

    @abstractmethod
    def deal(self, work: Tensor, num_processes: int) -> Tensor:
        """The process that trains each client [M], from the clients' expected work [M]; the same on all processes."""

    def cohorts(self, round: Round, buffers: Tensor, counters: list[Tensor]) -> Iterator[Cohort]:
        """Deal ``round.local_clients`` into cohorts, not yet trained."""
        clients = round.local_clients
        sizes = self.data.client_sizes[clients]
        num_steps = self.work.num_steps(sizes, self.data.batch_size)
        waiting = self.order(clients, num_steps, sizes)
        while len(waiting):
            chosen = waiting[: self.cohort_size]
            before = self.cohort_size
            yield Cohort(
                round=round,
                ids=clients[chosen],
                num_examples=sizes[chosen],
                num_steps=num_steps[chosen],
                values=self._starting_point(round, len(chosen)),
                buffers=buffers.expand(len(chosen), -1).clone(),
                counters=[c.expand(len(chosen), *c.shape) for c in counters],
                model=self.model,
            )
            if self.cohort_size == before:  # or else the device has refused, and they come again
                waiting = waiting[len(chosen) :]

    def train(self, cohort: Cohort, rates: LearningRates) -> bool:
        """The local work of a cohort: ``values`` and ``buffers`` become the trained ones.

        False where the device's memory was too small for it: then ``cohort_size`` is halved from here on, and
        ``cohorts`` deals its clients again. Nothing of theirs has been kept by then.

        Raises:
            torch.OutOfMemoryError: it is too small for one client.
        """
        try:
            self._train(cohort, rates)
            return True
        except torch.OutOfMemoryError:
            if len(cohort) == 1:
                raise
        self.cohort_size = len(cohort) // 2
        self._buffer, self._plans, self._global, self._optimizers = None, [], [], {}
        if cohort.values.device.type == "cuda":
            torch.cuda.empty_cache()
        return False

    def _train(self, cohort: Cohort, rates: LearningRates) -> None:
        self.place(cohort)
        self._logs.start()
        for callback in self._starting:
            callback.on_cohort_start(cohort)
        cohort.phases = [self._prepare(cohort, index, rates) for index in range(len(self.work.phases))]
        cohort.optimizer = cohort.phases[0].optimizer
        # Weakly: a cohort that refers to itself would keep its rows until the garbage collector comes by.
        this = weakref.proxy(cohort)
        cohort.full_gradient = lambda params: self._full_gradient(this, params)
        gradient = self._compose(cohort)
        with self.model.recording():
            for index, phase in enumerate(cohort.phases):
                self._phase, cohort.optimizer = index, phase.optimizer
                self._train_phase(cohort, phase, gradient)
        self._logs.finish(cohort)
        cohort.active = len(cohort)
        self.collect(cohort)

    def _train_phase(self, cohort: Cohort, phase: Phase, gradient: Gradient) -> None:
        """The steps of one phase; parameters it does not train are left alone."""
        keys = cohort.ids.to(cohort.values.device)  # of no use where nothing is drawn
        if self.model.random_operations:
            keys = client_keys(keys, self.seed, *self._address("model", cohort))
        descends = self._descends(cohort, phase)
        with self.model.training_only(self._trained[self._phase]):
            batches = self._frozen.reading_ahead(cohort, self._batches(cohort, phase))
            for step, plans in itertools.groupby(batches, key=lambda item: item[0].step):
                items = list(plans)
                self._plans = [(plan, batch) for plan, batch, _ in items]
                cohort.step, cohort.active = step, self._plans[0][0].active
                self._keys = fold(keys, step) if self.model.random_operations else keys
                # Once a step, however often its gradient is asked for.
                server = cohort.round.server
                self._global = [
                    self.global_features(batch, self._keys[plan.rows], server) if features is None else features
                    for plan, batch, features in items
                ]
                self._recording = True
                if descends:
                    self._descend(cohort, phase)
                    continue
                phase.optimizer.narrow(cohort.active)
                gradients = gradient(cohort.values[: cohort.active])
                if phase.trained is not None:  # what corrections add to frozen ones must not count in a norm
                    gradients.mul_(phase.trained)
                if phase.optimizer.steps_module:  # another pass of this step may have bound other parameters
                    self.model.bind(cohort.values[0])
                phase.optimizer.step(self.work.clip(gradients))
                for callback in self._stepping:
                    callback.on_step_end(cohort)

    @property
    def _records_descents(self) -> bool:
        return self._traced is not None and self.may_descend and not self._is_wrapped

    def _descends(self, cohort: Cohort, phase: Phase) -> bool:
        """Whether nothing comes between the loss's gradient and ``values -= rate * gradient``, in a recorded step."""
        return (
            self._records_descents
            and cohort.round.basis is None
            and self.work.clip_value is None
            and phase.trained is None
            and phase.optimizer.plain_rate is not None
        )

    def _descend(self, cohort: Cohort, phase: Phase) -> None:
        """One recorded step of plain SGD."""
        assert self._traced is not None
        rate = phase.optimizer.take_plain_step()
        for (plan, batch), features in zip(self._plans, self._global, strict=True):
            rows, keys, extras = cohort.values[plan.rows], self._keys[plan.rows], _extras(cohort, plan, features)
            arguments = rows, batch, keys, cohort.round.server, extras, *plan.weights
            try:
                losses, logs = self._traced[self._phase].descend(rate, *arguments)
            except Exception as error:
                _note(error, cohort, plan)
                raise
            if not isinstance(plan.rows, slice):
                cohort.values[plan.rows] = rows
            self._logs.add(cohort, plan, losses, logs)
        for callback in self._stepping:
            callback.on_step_end(cohort)

    def try_step(self, params: Tensor, batch: Any, keys: Tensor, anchor: Tensor, extras: Extras) -> None:
        """A step of G clients as it will be taken, on the side: for timing."""
        size = next(leaf.shape[1] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        weights = (params.new_full((len(params), size), 1 / size),) if self.padded_width else ()
        arguments = batch, keys, anchor, extras, *weights
        if self._records_descents:
            assert self._traced is not None
            self._traced[0].descend(0.0, params, *arguments)
        else:
            params -= 0.0 * self._gradients(params, *arguments, step=0)[0]

    def _prepare(self, cohort: Cohort, index: int, rates: LearningRates) -> Phase:
        """A phase of a cohort's work, with a fresh optimizer, or the last one where it has no state."""
        in_coordinates = cohort.round.basis is not None
        work, names = self.work.phases[index], self._trained[index]
        settings = (rates.of_phase(work.lr), in_coordinates)
        known, optimizer = self._optimizers.get(index, (None, None))
        if optimizer is None or settings != known or not optimizer.restart(cohort.values):
            optimizer = LocalOptimizer(self.model.module, self.model.layout, cohort.values, *settings, trained=names)
            self._optimizers[index] = (settings, optimizer)
        return Phase(optimizer, work.num_steps(cohort.num_examples, self.data.batch_size), self._masks[index])

    def _address(self, purpose: str, cohort: Cohort) -> tuple[int | str, ...]:
        """Where the draws of the current phase lie; those of the first are where they are without phases."""
        return purpose, cohort.round.number, *([self._phase] if self._phase else [])

    def _starting_point(self, round: Round, count: int) -> Tensor:
        """Rows to train, [C, D] at x or coordinates [C, R] at zero; the memory is used again by the next cohort."""
        width = round.server.numel() if round.basis is None else round.basis.rank
        if self._buffer is None or self._buffer.shape[0] < count or self._buffer.shape[1] != width:
            self._buffer = round.server.new_empty(count, width)
        values = self._buffer[:count]
        return values.copy_(round.server) if round.basis is None else values.zero_()

    def _compose(self, cohort: Cohort) -> Gradient:
        """The local gradient: the loss's, wrapped by the callbacks in order; coordinates come in at their owner."""
        gradient: Gradient = lambda params: self._loss_gradient(cohort, params)  # noqa: E731
        cohort.origin = cohort.round.server
        for callback in self._callbacks:
            if cohort.round.basis is not None and overrides(callback, "coordinates"):
                cohort.origin = cohort.values.new_zeros(cohort.values.shape[1])
                gradient = _in_coordinates(cohort, gradient)
            if overrides(callback, "wrap_gradient"):
                gradient = callback.wrap_gradient(cohort, gradient)
        return gradient

    def _loss_gradient(self, cohort: Cohort, params: Tensor) -> Tensor:
        """Gradients [A, D] of the losses on this step's batches."""
        parts = []
        for (plan, batch), features in zip(self._plans, self._global, strict=True):
            rows, keys = params, self._keys
            if plan.rows != slice(0, params.shape[0]) or plan.active < keys.shape[0]:
                rows, keys = params[plan.rows], keys[plan.rows]
            arguments = rows, batch, keys, cohort.round.server, _extras(cohort, plan, features), *plan.weights
            try:
                part, losses, logs = self._gradients(*arguments, step=cohort.step)
            except Exception as error:
                _note(error, cohort, plan)
                raise
            if self._recording:
                self._logs.add(cohort, plan, losses, logs)
            parts.append((plan.rows, part))
        self._recording = False  # a second pass in the same step is not logged
        return _join(parts, params)

    def _gradients(
        self, params: Tensor, batch: Any, keys: Tensor, anchor: Tensor, extras: Extras, *weights: Tensor, step: int
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        if self._traced is not None:
            return self._traced[self._phase](params, batch, keys, anchor, extras, *weights)
        return self.gradients(params, batch, step, keys, anchor, extras, *weights)

    def _full_gradient(self, cohort: Cohort, params: Tensor) -> Tensor:
        """Gradients [A, D] of the mean loss over the whole training sets of the first A clients, in stored order."""
        total = torch.zeros_like(params)
        count = len(params)
        ids, sizes = cohort.ids[:count], cohort.num_examples[:count]
        batch_size = max(self.data.batch_size, _WHOLE_BATCH)
        indices = self.data.client_indices(ids)[0].to(params.device)
        keys = client_keys(ids.to(params.device), self.seed, "full gradient", cohort.round.number)
        steps = steps_per_epoch_of(sizes, batch_size)
        augment = keys if self.data.has_random_transforms else None
        schedule = LocalSchedule(indices, sizes, steps, batch_size, keys, augment, shuffle=False)
        with self.model.recording(), self.model.training_only(None):
            for plan, batch in self._with_batches(schedule):
                own_keys = fold(keys[plan.rows], plan.step)
                extras = _extras(cohort, plan, self.global_features(batch, own_keys, cohort.round.server))
                arguments = params[plan.rows], batch, own_keys, cohort.round.server, extras
                part, _, _ = self._gradients(*arguments, step=plan.step)
                total[plan.rows] += part * plan.indices.shape[1]
        return total / sizes.to(params)[:, None]

    def _batches(self, cohort: Cohort, phase: Phase) -> Iterator[tuple[BatchPlan, Any]]:
        """Plans and batches of a phase of a cohort's work."""
        device, sizes = cohort.values.device, cohort.num_examples
        ids, batch_size = cohort.ids.to(device), self.data.batch_size
        indices = self.data.client_indices(cohort.ids)[0].to(device)
        keys = client_keys(ids, self.seed, *self._address("shuffle", cohort))
        augment = None
        if self.data.has_random_transforms:
            augment = client_keys(ids, self.seed, *self._address("augment", cohort))
        if self.work.sampling == "replacement":
            drawn = ReplacementSchedule(indices, sizes, phase.num_steps, batch_size, keys, augment)
            return self._with_batches(drawn)
        padding = self._padding(cohort, phase)
        schedule = LocalSchedule(indices, sizes, phase.num_steps, batch_size, keys, augment, padding=padding)
        return self._with_batches(schedule)

    def _padding(self, cohort: Cohort, phase: Phase) -> Padding | None:
        """How batches are padded. A recorded step may be given rows that are not at work, but no others may."""
        if not self.padded_width:
            return None
        rows = -(-len(cohort) // _FRACTIONS) if self._descends(cohort, phase) else 1
        return Padding(self.padded_width, rows, cohort.values.dtype)

    def _with_batches(self, schedule: Iterable[BatchPlan]) -> Iterator[tuple[BatchPlan, Any]]:
        plans, feed = itertools.tee(schedule)
        batches = self.data.batches((plan.indices, plan.keys) for plan in feed)
        return zip(plans, (self.model.converted(batch) for batch in batches), strict=True)

    @abstractmethod
    def place(self, cohort: Cohort) -> None:
        """Prepare the model for a cohort."""

    @abstractmethod
    def collect(self, cohort: Cohort) -> None:
        """Take what training left in the model (buffers)."""


def _extras(cohort: Cohort, plan: BatchPlan, features: dict[str, Tensor]) -> Extras:
    if not features and not cohort.loss_rows:
        return NO_EXTRAS
    return Extras(features, {name: rows[plan.rows] for name, rows in cohort.loss_rows.items()})


def _note(error: Exception, cohort: Cohort, plan: BatchPlan) -> None:
    """Say in whose step an error was raised."""
    clients = cohort.ids[plan.rows].tolist()
    error.add_note(f"in round {cohort.round.number}, local step {cohort.step} of client(s) {clients}")


def _in_coordinates(cohort: Cohort, gradient: Gradient) -> Gradient:
    """``z -> P (g(y) + wd * y)`` with ``y = x + P^T z``: weight decay belongs to the parameters, never to z."""
    basis, anchor = cohort.round.basis, cohort.round.server
    assert basis is not None
    decay = cohort.optimizer.weight_decay()

    def projected(values: Tensor) -> Tensor:
        params = anchor + basis.lift(values)
        gradients = gradient(params)
        if decay is not None:
            gradients.add_(decay * params)
        return basis.project(gradients)

    return projected


def _join(parts: list[tuple[slice | Tensor, Tensor]], params: Tensor) -> Tensor:
    """Put the gradients of parts of the rows together."""
    if len(parts) == 1 and parts[0][1].shape[0] == params.shape[0]:
        return parts[0][1]
    joined = torch.empty_like(params)
    for rows, part in parts:
        joined[rows] = part
    return joined
