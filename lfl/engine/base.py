"""The local loop: the only place where local steps are taken."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from lfl.callbacks.base import FederatedCallback, Gradient, overrides
from lfl.client import ClientModel, Extras
from lfl.data.base import FederatedData
from lfl.engine.schedule import BatchPlan, LocalSchedule, ReplacementSchedule, steps_per_epoch_of
from lfl.engine.work import LocalWork
from lfl.optim import LearningRates, LocalOptimizer
from lfl.randomness import client_keys, fold
from lfl.round import Cohort, Phase, Round

_WHOLE_BATCH = 128  # examples at a time in a pass over a client's whole data


class LocalEngine(ABC):
    """Trains cohorts of clients. Engines differ in how a gradient is computed and how many clients a cohort has.

    Args:
        model: the one model.
        data: the clients' data.
        work: local work of a round.
        callbacks: the stack.
        seed: of all draws.
        cohort_size: the largest C.
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

    @abstractmethod
    def gradients(
        self, params: Tensor, batch: Any, step: int, keys: Tensor, anchor: Tensor, extras: Extras
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Gradients [G, D], losses [G] and logged values [G] of G clients on a batch ``[G, b, ...]``."""

    def global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        """What the loss terms read of the model at x [D], for G clients' batches: outputs ``[G, b, ...]`` by name."""
        return self._global_features(batch, keys, anchor) if self.model.global_feature_names else {}

    @abstractmethod
    def _global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        """The pass of the model at x, where some loss term reads of it."""

    @abstractmethod
    def order(self, ids: Tensor, num_steps: Tensor, sizes: Tensor) -> Tensor:
        """The order in which the clients of a round are put into cohorts, as positions in ``ids``."""

    def cohorts(self, round: Round, buffers: Tensor) -> Iterator[Cohort]:
        """Deal ``round.local_clients`` into cohorts, not yet trained."""
        clients = round.local_clients
        sizes = self.data.client_sizes[clients]
        num_steps = self.work.num_steps(sizes, self.data.batch_size)
        order = self.order(clients, num_steps, sizes)
        for chosen in order.split(self.cohort_size) if len(clients) else ():
            yield Cohort(
                round=round,
                ids=clients[chosen],
                num_examples=sizes[chosen],
                num_steps=num_steps[chosen],
                values=self._starting_point(round, len(chosen)),
                buffers=buffers.expand(len(chosen), -1).clone(),
            )

    def train(self, cohort: Cohort, rates: LearningRates) -> None:
        """The local work of a cohort: ``values`` and ``buffers`` become the trained ones."""
        self.place(cohort)
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
        cohort.active = len(cohort)
        self.collect(cohort)

    def _train_phase(self, cohort: Cohort, phase: Phase, gradient: Gradient) -> None:
        """The steps of one phase; parameters it does not train are left alone."""
        keys = cohort.ids.to(cohort.values.device)  # of no use where nothing is drawn
        if self.model.random_operations:
            keys = client_keys(keys, self.seed, *self._address("model", cohort))
        with self.model.training_only(self._trained[self._phase]):
            for step, plans in itertools.groupby(self._batches(cohort, phase), key=lambda item: item[0].step):
                self._plans = list(plans)
                cohort.step, cohort.active = step, self._plans[0][0].active
                self._keys = fold(keys, step) if self.model.random_operations else keys
                # Once a step, however often its gradient is asked for.
                server = cohort.round.server
                self._global = [self.global_features(b, self._keys[plan.rows], server) for plan, b in self._plans]
                self._recording = True
                phase.optimizer.narrow(cohort.active)
                gradients = gradient(cohort.values[: cohort.active])
                if phase.trained is not None:  # what corrections add to frozen ones must not count in a norm
                    gradients.mul_(phase.trained)
                if phase.optimizer.steps_module:  # another pass of this step may have bound other parameters
                    self.model.bind(cohort.values[0])
                phase.optimizer.step(self.work.clip(gradients))
                for callback in self._stepping:
                    callback.on_step_end(cohort)

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
            extras = _extras(cohort, plan, features)
            try:
                part, losses, logs = self.gradients(rows, batch, cohort.step, keys, cohort.round.server, extras)
            except Exception as error:
                clients = cohort.ids[plan.rows].tolist()
                error.add_note(f"in round {cohort.round.number}, local step {cohort.step} of client(s) {clients}")
                raise
            if self._recording:
                self._record(cohort, plan, losses, logs)
            parts.append((plan.rows, part))
        self._recording = False  # a second pass in the same step is not logged
        return _join(parts, params)

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
                part, _, _ = self.gradients(params[plan.rows], batch, plan.step, own_keys, cohort.round.server, extras)
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
        kind = ReplacementSchedule if self.work.sampling == "replacement" else LocalSchedule
        return self._with_batches(kind(indices, sizes, phase.num_steps, batch_size, keys, augment))

    def _with_batches(self, schedule: Iterable[BatchPlan]) -> Iterator[tuple[BatchPlan, Any]]:
        plans, feed = itertools.tee(schedule)
        batches = self.data.batches((plan.indices, plan.keys) for plan in feed)
        return ((plan, self.model.converted(batch)) for plan, batch in zip(plans, batches, strict=True))

    def _record(self, cohort: Cohort, plan: BatchPlan, losses: Tensor, logs: dict[str, Tensor]) -> None:
        size = plan.indices.shape[1]
        for name, values in (("train/loss", losses), *logs.items()):
            if name not in cohort.metrics:
                cohort.metrics[name] = torch.zeros(len(cohort), dtype=torch.float64, device=losses.device)
                cohort.metrics[f"{name}/count"] = torch.zeros_like(cohort.metrics[name])
            if isinstance(plan.rows, slice):  # views: no copies
                cohort.metrics[name][plan.rows].add_(values, alpha=size)
                cohort.metrics[f"{name}/count"][plan.rows].add_(size)
            else:
                cohort.metrics[name][plan.rows] += values * size
                cohort.metrics[f"{name}/count"][plan.rows] += size

    @abstractmethod
    def place(self, cohort: Cohort) -> None:
        """Prepare the model for a cohort."""

    @abstractmethod
    def collect(self, cohort: Cohort) -> None:
        """Take what training left in the model (buffers)."""


def _extras(cohort: Cohort, plan: BatchPlan, features: dict[str, Tensor]) -> Extras:
    return Extras(features, {name: rows[plan.rows] for name, rows in cohort.loss_rows.items()})


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
