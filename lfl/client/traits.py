"""The traits of a training step: what it does besides computing a loss from its batch and parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

INDEX = "`batch_idx`"


@dataclass(frozen=True)
class StepTraits:
    """The traits that have been seen of a module's training step.

    Attributes:
        random_operations: whether it draws random numbers that can be computed from a client's key, such as dropout.
        unbatched_layers: whether it has layers for which vmap has no rule, such as attention.
        host_draws: generators that it draws from besides, by what they are called.
        changed_buffers: buffers that it changes.
        changed_parameters: parameters that it changes by itself.
        changed_attributes: other attributes of the module that it changes: counters, lists of outputs, tensors.
        changed_outside: globals, attributes of classes and variables of closures that it changes.
        logged_metrics: Metric objects that it logs.
        reads: what it reads that changes from step to step or from round to round, such as ``current_epoch``.
        reads_values: by which functions of torch its Python code learns values of tensors, or sizes that follow from
            values.
        read_attributes: attributes of the module that it reads.
        without_gradient: parameters that got no gradient in any step.
        missing: parameters that got none in at least one step.
        needs_backward: whether some parameters get theirs from ``backward`` only.
        gradient_hooks: parameters whose gradients hooks of the user's look at.
    """

    random_operations: bool = False
    unbatched_layers: bool = False
    host_draws: tuple[str, ...] = ()
    changed_buffers: tuple[str, ...] = ()
    changed_parameters: tuple[str, ...] = ()
    changed_attributes: tuple[str, ...] = ()
    changed_outside: tuple[str, ...] = ()
    logged_metrics: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    reads_values: tuple[str, ...] = ()
    read_attributes: tuple[str, ...] = ()
    without_gradient: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    needs_backward: bool = False
    gradient_hooks: tuple[str, ...] = ()

    def __or__(self, other: StepTraits) -> StepTraits:
        """The traits that have been seen in at least one of two steps; of gradients, what was missing in both."""
        both = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        joined: dict[str, Any] = {
            k: a or b if isinstance(a, bool) else tuple(dict.fromkeys(a + b)) for k, (a, b) in both.items()
        }
        joined["without_gradient"] = tuple(n for n in self.without_gradient if n in other.without_gradient)
        return StepTraits(**joined)

    @property
    def depends_on_rounds(self) -> bool:
        """Whether the step reads what may change from round to round without a trace in the module."""
        return any(read != INDEX for read in self.reads)

    @property
    def sometimes_missing(self) -> tuple[str, ...]:
        """Parameters that got a gradient in some steps and none in others."""
        return tuple(name for name in self.missing if name not in self.without_gradient)

    @property
    def side_effect(self) -> str | None:
        """The trait by which a step is no function of its arguments, for a sentence about it; None for none."""
        if self.changed_buffers:
            return f"changes the buffer {self.changed_buffers[0]!r} in place"
        if self.host_draws:
            return f"draws from {self.host_draws[0]}"
        if self.logged_metrics:
            return f"logs the Metric object {self.logged_metrics[0]!r}, which keeps a state of its own"
        if self.changed_parameters:
            return f"changes the parameter {self.changed_parameters[0]!r} by itself"
        if self.changed_attributes:
            return f"changes the module's attribute {self.changed_attributes[0]!r}"
        if self.changed_outside:
            return f"changes {self.changed_outside[0]!r}, which is outside of the module"
        if self.gradient_hooks:
            return f"calls a hook on the gradient of {self.gradient_hooks[0]!r}"
        return None
