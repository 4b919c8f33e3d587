"""The innermost gradient functions of a cohort, which callbacks wrap."""

from collections.abc import Callable

import torch
from torch import Tensor

from lfl.callback import Gradient
from lfl.client.schedule import BatchPlan
from lfl.client.step import LocalStep, StepInput, StepResult
from lfl.round import Cohort


def loss_gradient(cohort: Cohort, compute: Callable[[int, Tensor, StepInput], StepResult]) -> Gradient:
    """The gradients [A, D] of the losses on the batches of a step.

    Args:
        cohort: the cohort.
        compute: computes the step of some clients, given the phase of the local work.
    """

    def gradient(params: Tensor, step: LocalStep) -> Tensor:
        count = params.shape[0]
        parts: list[tuple[slice | Tensor, Tensor]] = []
        for batch in step.batches:
            plan = batch.plan
            # Slicing all rows would change nothing, and costs as much as a small operation.
            rows = params if _are_all(plan.rows, count) else params[plan.rows]
            try:
                gradients, losses, logs = compute(step.phase, rows, step.input_of(batch))
            except Exception as error:
                note_clients(error, cohort, plan)
                raise
            if step.log is not None:
                step.log(plan, losses, logs)
            parts.append((plan.rows, gradients))
        step.log = None  # another pass in the same step is not logged
        return _join(parts, params)

    return gradient


def in_coordinates(cohort: Cohort, gradient: Gradient) -> Gradient:
    """The gradient in coordinates z [A, R]: ``z -> P (g(y) + wd * y)`` with ``y = x + P^T z``.

    Weight decay belongs to the parameters, never to z: decaying z would pull clients to x instead of to zero.
    """
    basis, anchor = cohort.round.basis, cohort.round.server
    assert basis is not None
    decay = cohort.optimizer.weight_decay()

    def projected(values: Tensor, step: LocalStep) -> Tensor:
        params = anchor + basis.lift(values)
        gradients = gradient(params, step)
        if decay is not None:
            gradients.add_(decay * params)
        return basis.project(gradients)

    return projected


def note_clients(error: Exception, cohort: Cohort, plan: BatchPlan) -> None:
    """Add to an error in whose step it was raised."""
    clients = cohort.ids[plan.rows].tolist()
    error.add_note(f"in round {cohort.round.number}, local step {plan.step} of client(s) {clients}")


def _are_all(rows: slice | Tensor, count: int) -> bool:
    return isinstance(rows, slice) and rows.start == 0 and rows.stop == count


def _join(parts: list[tuple[slice | Tensor, Tensor]], params: Tensor) -> Tensor:
    """Put the gradients of parts of the rows together."""
    if len(parts) == 1 and parts[0][1].shape[0] == params.shape[0]:
        return parts[0][1]
    joined = torch.empty_like(params)
    for rows, part in parts:
        joined[rows] = part
    return joined
