"""Compares steps that were computed in a faster way with the same steps, taken one client at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from lfl.client.model import ClientModel
from lfl.client.step import Extras, StepInput, StepResult
from lfl.engine.plain import frozen_features, plain_features, plain_step
from lfl.randomness import uniform

_COMPARED = 3  # clients of a batch
# Of the largest entry of a parameter's gradient. What is beyond is held against what rounding does to the step itself.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_LOW_PRECISION = 0.05  # where parts are computed in 16 bits
_TINY = 0.01  # a gradient below this share of the largest one may be nothing but rounding
_ROUNDING = 16.0  # times what the step moves by when its parameters move by their last bits


class Difference(Exception):
    """A step gives other numbers than the same step, taken one client at a time with plain autograd.

    Attributes:
        sample: the step, if somebody has noted it.
    """

    sample: Any = None


class Witness:
    """Takes steps one client at a time, on a copy of the module, and compares.

    Args:
        model: the model; it is left alone.
        trained: names of the parameters that get a gradient; None for all.
    """

    def __init__(self, model: ClientModel, trained: list[str] | None = None) -> None:
        self._model = model.copy()
        self._trained = trained
        self._is_low = _is_low_precision(self._model)

    def check(self, params: Tensor, input: StepInput, result: StepResult) -> None:
        """Compare the steps of some clients, at most three, with those that they take alone.

        Args:
            params: their parameters [G, D] before the step.
            input: what the step was computed from; may be padded.
            result: what came out.

        Raises:
            Difference: one of them differs by more than rounding.
        """
        for row in _some_rows(len(params), input):
            alone = row_of(input, row)
            logs = {name: values.reshape(-1)[row] for name, values in result.logs.items()}
            ours = _Result(result.gradients[row], result.losses[row], logs)
            self._compare(params[row], alone, ours, lambda part: 0.0)

    def check_batch(self, params: Tensor, input: StepInput, batch: Any) -> None:
        """Compare the step of one client [D] with its step on another ``batch``; raises Difference as ``check``."""
        self._compare(params, input._replace(batch=batch), self._step(params, input), lambda part: 0.0)

    def check_descent(
        self, before: Tensor, after: Tensor, rate: float, input: StepInput, losses: Tensor, logs: dict[str, Tensor]
    ) -> None:
        """Compare steps ``after = before - rate * gradients`` [G, D], as ``check`` does."""
        if not rate:
            return
        last_bit = torch.finfo(before.dtype).eps
        for row in _some_rows(len(before), input):
            gradient = (before[row] - after[row]) / rate
            ours = _Result(gradient, losses[row], {name: values.reshape(-1)[row] for name, values in logs.items()})
            start = before[row]

            def lost(part: slice, start: Tensor = start) -> float:
                # What the subtraction rounds away is no fault of the gradient.
                return 4 * last_bit * _largest(start[part]) / rate

            self._compare(before[row], row_of(input, row), ours, lost)

    def _compare(self, params: Tensor, input: StepInput, ours: _Result, allowed: Callable[[slice], float]) -> None:
        exact = self._step(params, input)
        reason = self._reason(ours, exact, allowed, {})
        if reason is not None and not self._is_low:
            reason = self._reason(ours, exact, allowed, self._rounding(params, input, exact))
        if reason is not None:
            raise Difference(reason)

    def _step(self, params: Tensor, input: StepInput) -> _Result:
        model = self._model
        with model.recording(), model.training_only(self._trained):
            if model.global_feature_names:
                rows = input.extras.rows
                features = frozen_features(
                    model, input.anchor, rows, lambda at: plain_features(model, input.batch, input.keys, at)
                )
                input = input._replace(extras=Extras(features, rows))
            gradients, losses, logs = plain_step(model, params.clone().unsqueeze(0), input)
        return _Result(gradients[0], losses[0], logs)

    def _rounding(self, params: Tensor, input: StepInput, exact: _Result) -> dict[str, float]:
        """Distances that gradients of each parameter, losses and logged values move with the parameters' last bits."""
        moved: dict[str, float] = {}
        for number in range(3):
            noise = uniform(input.keys.new_tensor([number])[0], params.numel(), params.dtype) - 0.5
            other = self._step(params * (1 + 16 * torch.finfo(params.dtype).eps * noise), input)
            for name, value in _distances(self._model, other, exact).items():
                moved[name] = max(moved.get(name, 0.0), _ROUNDING * value)
        return moved

    def _reason(
        self, ours: _Result, exact: _Result, allowed: Callable[[slice], float], rounding: dict[str, float]
    ) -> str | None:
        tolerance = _LOW_PRECISION if self._is_low else max(_tolerance(exact.gradient), _tolerance(exact.loss))
        if ours.logs.keys() != exact.logs.keys():
            return f"it logs {sorted(ours.logs)} instead of {sorted(exact.logs)}"
        largest = _largest(exact.gradient)
        for name, distance in _distances(self._model, ours, exact).items():
            part = self._model.layout.slices.get(name)
            if part is not None:
                size = _largest(exact.gradient[part])
                limit = tolerance * (size + _TINY * largest) + allowed(part)
                what = f"the gradient of {name!r}"
            else:
                size = abs(float(exact.loss if name == "" else exact.logs[name[1:]]))
                limit = tolerance * max(size, _TINY)
                what = "the loss" if name == "" else f"what it logs as {name[1:]!r}"
            # Written so that nan, which is never within a limit, is a difference; where both are nan the distance is 0.
            if distance != 0.0 and not distance <= limit + rounding.get(name, 0.0):
                return f"{what} is {distance:.2g} off, of {size:.2g}"
        return None


def _tolerance(values: Tensor) -> float:
    return _TOLERANCE.get(values.dtype, _LOW_PRECISION)


class _Result:
    """A step of one client: its gradient [D], loss and logged values."""

    def __init__(self, gradient: Tensor, loss: Tensor, logs: dict[str, Tensor]) -> None:
        self.gradient, self.loss, self.logs = gradient, loss, logs


def _distances(model: ClientModel, one: _Result, other: _Result) -> dict[str, float]:
    """The largest difference of each parameter's gradient, by its name; of the loss (""), and of logs ("/" + name)."""
    apart = (one.gradient - other.gradient).abs()
    # Not finite in both is equal: what is done about it does not depend on how it was computed.
    apart = apart.where(one.gradient.isfinite() | other.gradient.isfinite(), 0.0)
    distances = {name: _largest(apart[part]) for name, part in model.layout.slices.items()}
    distances[""] = _apart(one.loss, other.loss)
    for name in one.logs.keys() & other.logs.keys():
        distances[f"/{name}"] = _apart(one.logs[name], other.logs[name])
    return distances


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _apart(one: Tensor, other: Tensor) -> float:
    a, b = float(one), float(other)
    return 0.0 if a == b or (a != a and b != b) else abs(a - b)


def _some_rows(count: int, input: StepInput) -> list[int]:
    """At most three rows, of clients at work: the last, the first, and one that the keys draw."""
    rows = list(range(count))
    if input.weights is not None:
        rows = [row for row, weight in enumerate(input.weights.sum(dim=1).tolist()) if weight > 0]
    if len(rows) <= _COMPARED:
        return rows
    return [rows[-1], rows[1 + int(input.keys[rows[-1]]) % (len(rows) - 2)], rows[0]]


def row_of(input: StepInput, row: int) -> StepInput:
    """The input of one client, without its padding."""
    size = None if input.weights is None else int((input.weights[row] > 0).sum())
    one = slice(row, row + 1)
    batch = tree_map(lambda x: x[one, :size], input.batch)
    rows = {name: values[one] for name, values in input.extras.rows.items()}
    features = {name: values[one] for name, values in input.extras.global_features.items()}
    return input._replace(batch=batch, keys=input.keys[one], extras=Extras(features, rows), weights=None)


def _is_low_precision(model: ClientModel) -> bool:
    one = torch.ones(1, 1, device=model.parameters[0].device)
    with model.autocast():
        return (one @ one).dtype.itemsize < 4
