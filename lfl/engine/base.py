"""The local loop: the only place where local steps are taken."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lfl.callbacks.base import FederatedCallback, Gradient, overrides
from lfl.client import ClientModel, Extras
from lfl.data.base import FederatedData
from lfl.engine.schedule import BatchPlan, LocalSchedule, ReplacementSchedule, steps_per_epoch_of
from lfl.optim import LocalOptimizer
from lfl.randomness import client_keys, fold
from lfl.round import Cohort, Round

_WHOLE_BATCH = 128  # examples at a time in a pass over a client's whole data


@dataclass(frozen=True)
class LocalWork:
    """How much a client does in a round: exactly one of epochs and steps.

    Attributes:
        epochs: passes over its data.
        steps: optimizer steps; its data is shuffled anew whenever it is used up.
        clip_value: clip the whole local gradient, corrections included; None for no clipping.
        clip_algorithm: clip its norm, or each entry.
        sampling: batches from shuffled epochs, or independent draws with replacement.
    """

    epochs: int | None = None
    steps: int | None = None
    clip_value: float | None = None
    clip_algorithm: Literal["norm", "value"] = "norm"
    sampling: Literal["epochs", "replacement"] = "epochs"

    def num_steps(self, sizes: Tensor, batch_size: int) -> Tensor:
        """Local steps of each client [C]."""
        if self.steps is not None:
            return torch.full_like(sizes, self.steps)
        return (self.epochs or 1) * steps_per_epoch_of(sizes, batch_size)

    def clip(self, gradients: Tensor) -> Tensor:
        """Clip rows [A, D] in place."""
        if self.clip_value is None:
            return gradients
        if self.clip_algorithm == "value":
            return gradients.clamp_(-self.clip_value, self.clip_value)
        norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
        # The same factor as torch.nn.utils.clip_grad_norm_.
        return gradients.mul_((self.clip_value / (norms + 1e-6)).clamp_(max=1.0))


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
        self._optimizer: LocalOptimizer | None = None
        self._optimizer_settings: Any = None
        self._plans: list[tuple[BatchPlan, Any]] = []
        self._global: list[dict[str, Tensor]] = []  # features of the model at x, for each of the plans
        self._keys = torch.zeros(1, dtype=torch.int64)
        self._recording = False

    @abstractmethod
    def gradients(
        self, params: Tensor, batch: Any, step: int, keys: Tensor, anchor: Tensor, extras: Extras
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Gradients [G, D], losses [G] and logged values [G] of G clients on a batch ``[G, b, ...]``."""

    @abstractmethod
    def global_features(self, batch: Any, keys: Tensor, anchor: Tensor) -> dict[str, Tensor]:
        """What the loss terms read of the model at x [D], for G clients' batches: outputs ``[G, b, ...]`` by name."""

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

    def train(self, cohort: Cohort, rates: list[float] | None) -> None:
        """The local work of a cohort: ``values`` and ``buffers`` become the trained ones."""
        self.place(cohort)
        for callback in self._starting:
            callback.on_cohort_start(cohort)
        cohort.optimizer = self._optimizer_of(cohort, rates)
        # Weakly: a cohort that refers to itself would keep its rows until the garbage collector comes by.
        this = weakref.proxy(cohort)
        cohort.full_gradient = lambda params: self._full_gradient(this, params)
        gradient = self._compose(cohort)
        device = cohort.values.device
        keys = cohort.ids.to(device)  # of no use where nothing is drawn
        if self.model.random_operations:
            keys = client_keys(keys, self.seed, "model", cohort.round.number)
        with self.model.recording():
            for step, plans in itertools.groupby(self._batches(cohort), key=lambda item: item[0].step):
                self._plans = list(plans)
                cohort.step, cohort.active = step, self._plans[0][0].active
                self._keys = fold(keys, step) if self.model.random_operations else keys
                self._global = [self._features_at(cohort, plan, batch) for plan, batch in self._plans]
                self._recording = True
                cohort.optimizer.narrow(cohort.active)
                gradients = gradient(cohort.values[: cohort.active])
                cohort.optimizer.step(self.work.clip(gradients))
                for callback in self._stepping:
                    callback.on_step_end(cohort)
        cohort.active = len(cohort)
        self.collect(cohort)

    def _optimizer_of(self, cohort: Cohort, rates: list[float] | None) -> LocalOptimizer:
        """A fresh optimizer, or the last one where it has no state and would be built the same."""
        in_coordinates = cohort.round.basis is not None
        settings = (rates, in_coordinates)
        if (
            self._optimizer is None
            or settings != self._optimizer_settings
            or not self._optimizer.restart(cohort.values)
        ):
            self._optimizer_settings = settings
            self._optimizer = LocalOptimizer(
                self.model.module, self.model.layout, cohort.values, rates, in_coordinates=in_coordinates
            )
        return self._optimizer

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
            extras = Extras(features, {name: values[plan.rows] for name, values in cohort.loss_rows.items()})
            try:
                part, losses, logs = self.gradients(rows, batch, cohort.step, keys, cohort.round.server, extras)
            except Exception as error:
                clients = cohort.ids[plan.rows].tolist()
                error.add_note(f"in round {cohort.round.number}, local step {cohort.step} of client(s) {clients}")
                raise
            if self._recording:
                self._record(cohort, plan, losses, logs)
            parts.append((plan.rows, part))
        self._recording = False  # a second pass in the same step (SAM) is not logged
        return _join(parts, params)

    def _features_at(self, cohort: Cohort, plan: BatchPlan, batch: Any) -> dict[str, Tensor]:
        """Features of the frozen model on a batch: once a step, however often its gradient is asked for."""
        if not self.model.global_feature_names:
            return {}
        return self.global_features(batch, self._keys[plan.rows], cohort.round.server)

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
        with self.model.recording():
            for plan, batch in self._with_batches(schedule):
                own_keys = fold(keys[plan.rows], plan.step)
                features = (
                    self.global_features(batch, own_keys, cohort.round.server)
                    if self.model.global_feature_names
                    else {}
                )
                extras = Extras(features, {name: rows[plan.rows] for name, rows in cohort.loss_rows.items()})
                part, _, _ = self.gradients(params[plan.rows], batch, plan.step, own_keys, cohort.round.server, extras)
                total[plan.rows] += part * plan.indices.shape[1]
        return total / sizes.to(params)[:, None]

    def _batches(self, cohort: Cohort) -> Iterator[tuple[BatchPlan, Any]]:
        """Plans and batches of a cohort's local work."""
        device, number, sizes = cohort.values.device, cohort.round.number, cohort.num_examples
        ids, batch_size = cohort.ids.to(device), self.data.batch_size
        indices = self.data.client_indices(cohort.ids)[0].to(device)
        keys = client_keys(ids, self.seed, "shuffle", number)
        augment = client_keys(ids, self.seed, "augment", number) if self.data.has_random_transforms else None
        kind = ReplacementSchedule if self.work.sampling == "replacement" else LocalSchedule
        return self._with_batches(kind(indices, sizes, cohort.num_steps, batch_size, keys, augment))

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
