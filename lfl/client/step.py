"""One local step as values: what it is computed from, what comes out of it, and what a term of its loss may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lfl.client.schedule import BatchPlan


class Extras(NamedTuple):
    """The tensors that the loss terms use besides batch and parameters; one row a client, so that vmap maps over them.

    Attributes:
        global_features: outputs of submodules at x on the batch, without gradient, by name; at another frozen model, by
            ``at_row``.
        rows: ``cohort.loss_rows``, by name.
    """

    global_features: dict[str, Tensor]
    rows: dict[str, Tensor]


NO_EXTRAS = Extras({}, {})


def at_row(row: str, submodule: str) -> str:
    """The name among the global features of what a submodule gives at the parameters in a row (``frozen_rows``)."""
    return f"{row}:{submodule}"


class StepInput(NamedTuple):
    """The input from which the gradients of G clients are computed, besides their parameters [G, D].

    Attributes:
        batch: a nest of tensors ``[G, b, ...]``.
        keys: one key per client for the random operations of this step [G].
        anchor: x, the model they started from [D].
        extras: what the loss terms use besides.
        weights: weights of the examples in their client's mean [G, b], zero for padding; None where all count alike.
        number: the local step, which the module sees as ``batch_idx``.
    """

    batch: Any
    keys: Tensor
    anchor: Tensor
    extras: Extras = NO_EXTRAS
    weights: Tensor | None = None
    number: int = 0

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The fields made of tensors, in order: ``StepInput(*input.tensors)`` is the input but for its number."""
        return self[:4] if self.weights is None else self[:5]


class StepResult(NamedTuple):
    """The results of a step of G clients.

    Attributes:
        gradients: of the losses, new tensor [G, D].
        losses: [G].
        logs: logged values by name, [G] each; without dimensions where the one client runs as a plain module.
    """

    gradients: Tensor
    losses: Tensor
    logs: dict[str, Tensor]


class StepTime(NamedTuple):
    """The time of a step.

    Attributes:
        seconds: of it.
        is_replayed: whether it was the replay of a recording, and nothing else.
    """

    seconds: float
    is_replayed: bool


StepFunction = Callable[[Tensor, StepInput], StepResult]
"""From parameters [G, D] and the input of a step to its result."""


class StepBatch(NamedTuple):
    """The batch of some clients of a cohort in one step.

    Attributes:
        plan: which clients, and which examples.
        batch: a nest of tensors ``[G, b, ...]``.
        keys: one key per client for the random operations of this step [G].
        features: outputs of submodules at x, and at other frozen models, on the batch ``[G, b, ...]``, by name.
    """

    plan: BatchPlan
    batch: Any
    keys: Tensor
    features: dict[str, Tensor]


@dataclass(slots=True)
class LocalStep:
    """One local step of a cohort, handed along the chain of gradient functions together with the parameters.

    Whoever needs the gradient at another point of the same step passes the same ``step`` again: batches and random
    draws are the same. ``other`` is the same step on other batches. Only the first pass is logged.

    Attributes:
        number: counted from 0 in every phase.
        phase: index of the phase of the local work.
        active: clients at work in this step (A); they are the first rows of the cohort.
        anchor: x [D].
        batches: clients whose batches have the same size share one.
        loss_rows: per-client tensors [C, ...] that ``client_loss`` sees as ``client.rows``.
        log: takes the losses and logged values of a batch; None once a pass has been logged.
        others: the step's further independent batches, where a callback asks for them (``batches_per_step``).
    """

    number: int
    phase: int
    active: int
    anchor: Tensor
    batches: list[StepBatch]
    loss_rows: dict[str, Tensor]
    log: Callable[[BatchPlan, Tensor, dict[str, Tensor]], None] | None = None
    others: list[list[StepBatch]] = field(default_factory=list)

    def other(self, draw: int) -> LocalStep:
        """The same step on the independent batches number ``draw``, from 1; passes with it are not logged."""
        return replace(self, batches=self.others[draw - 1], log=None)

    def with_loss_rows(self, rows: dict[str, Tensor]) -> LocalStep:
        """The same step with other rows [C, ...] for the terms of the loss; passes with it are not logged."""
        return replace(self, loss_rows=self.loss_rows | rows, log=None)

    def input_of(self, part: StepBatch) -> StepInput:
        """The input from which the gradients on one of the batches are computed."""
        plan, batch, keys, features = part
        # At each pass, and not once a step: rows that a plan gathers are copies, which would miss a change in place.
        extras = NO_EXTRAS
        if features or self.loss_rows:
            extras = Extras(features, {name: rows[plan.rows] for name, rows in self.loss_rows.items()})
        return StepInput(batch, keys, self.anchor, extras, plan.weights, self.number)


class ClientStep:
    """All that ``client_loss`` may use: one client's batch, parameters and model, inside the loss.

    Attributes:
        batch: the batch of this step ``[b, ...]``.
        params: the client's parameters [D], with gradient.
        anchor: x, the model it started from [D], without gradient.
        features: outputs of the submodules named in the callbacks' ``features``, by name.
        global_features: outputs at x of those named in ``global_features``, on the same batch, without gradient; at
            other frozen models (``frozen_rows``), by ``at_row``.
        rows: this client's rows of ``cohort.loss_rows``.
    """

    # Parameters, forward and log are functions: most terms use none of them, and to join parameters costs a copy.
    def __init__(
        self,
        batch: Any,
        anchor: Tensor,
        features: dict[str, Tensor],
        extras: Extras,
        params: Callable[[], Tensor],
        forward: Callable[[Tensor, tuple[Any, ...], str], Any],
        log: Callable[[str, Tensor], None],
    ) -> None:
        self.batch = batch
        self.anchor = anchor
        self.features = features
        self.global_features, self.rows = extras
        self._params = params
        self._forward = forward
        self._log = log

    @cached_property
    def params(self) -> Tensor:
        """The client's parameters [D]; joined when they are first asked for."""
        return self._params()

    def log(self, name: str, value: Tensor) -> None:
        """Log a scalar of this batch, as the module's ``self.log`` does."""
        self._log(name, value)

    def call(self, *inputs: Any, part: str = "") -> Any:
        """The ``forward`` of the module, or of its submodule ``part``, at ``params``."""
        return self._forward(self.params, inputs, part)

    def call_global(self, *inputs: Any, part: str = "") -> Any:
        """The ``forward`` of the module, or of its submodule ``part``, at x: frozen, without gradient."""
        with torch.no_grad():
            return self._forward(self.anchor, inputs, part)


LossTerm = Callable[[ClientStep, Tensor], Tensor]
"""A callback's ``client_loss``."""


class StepModule(nn.Module):
    """A module whose forward is the training step: ``functional_call`` calls nothing but forwards.

    Args:
        module: the user's.
        run: takes its training step.
    """

    def __init__(self, module: nn.Module, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.module, self._run = module, run

    def forward(self, *args: Any) -> Tensor:
        """Take the step."""
        return self._run(*args)
