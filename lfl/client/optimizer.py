"""The local optimizer: the user's own torch optimizer, stepping C clients' rows at once."""

import inspect
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import _configure_optimizers, _configure_schedulers_automatic_opt
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from lfl.client.layout import ParameterLayout

ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)
"""Optimizers that update every entry by itself, so that one step on [C, D] is a step of each of C clients."""


def is_elementwise(optimizer: Optimizer) -> bool:
    """Return whether one step on [C, D] is a step of each of C clients: hooks may look at all that they are given."""
    return type(optimizer) in ELEMENTWISE and not has_hooks(optimizer)


def has_hooks(optimizer: Optimizer) -> bool:
    """Return whether the user has put functions before or after an optimizer's steps."""
    return bool(optimizer._optimizer_step_pre_hooks) or bool(optimizer._optimizer_step_post_hooks)


_EPOCH_HOOKS = ("on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_end", "on_validation_end")


def build_optimizer(module: LightningModule) -> tuple[Optimizer, list[LRSchedulerConfig]]:
    """Build a fresh optimizer and its schedulers by ``module.configure_optimizers``, in any form Lightning documents.

    Raises:
        ValueError: there is no optimizer, more than one, or one that lfl cannot use.
    """
    configured = module.configure_optimizers()
    if configured is None:
        raise ValueError(
            f"`{type(module).__name__}.configure_optimizers` returned None; give an `optimizer:` or return one."
        )
    optimizers, schedulers, monitor = _configure_optimizers(configured)  # type: ignore[arg-type]  # Lightning's annotations disagree
    if len(optimizers) != 1:
        raise ValueError(
            f"`{type(module).__name__}.configure_optimizers` returned {len(optimizers)} optimizers; a client is "
            "trained by exactly one."
        )
    if isinstance(optimizers[0], torch.optim.LBFGS):
        raise ValueError("LBFGS evaluates the loss several times a step, which local steps do not offer: use another.")
    use_python_numbers(optimizers[0])
    return optimizers[0], _configure_schedulers_automatic_opt(schedulers, monitor)


def may_change(module: LightningModule) -> bool:
    """Whether ``configure_optimizers`` may give another optimizer in another round: by a hook, or by the round."""
    if any(is_overridden(hook, module) for hook in _EPOCH_HOOKS):
        return True
    code = getattr(inspect.unwrap(module.configure_optimizers), "__code__", None)
    return code is not None and not {"current_epoch", "global_step", "trainer"}.isdisjoint(code.co_names)


def advance(config: LRSchedulerConfig, *metric: float) -> None:
    """Step a scheduler; ``metric`` is the value that it watches, if it watches one."""
    scheduler: Any = config.scheduler  # its type is a union of classes whose `step` methods differ
    scheduler.step(*metric)


def use_python_numbers(optimizer: Optimizer) -> None:
    """Make Python's numbers of the numpy scalars among an optimizer's settings.

    A schedule that is computed with numpy leaves them there. Of type float64 they are written otherwise, and of others
    they are no floats and round every product to their own precision.
    """
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
                group[name] = value.item()


def movement_scale(groups: Iterable[dict[str, Any]], rates: list[float], pull: float = 0.0) -> float:
    """The move of a parameter by SGD if every gradient is 1: ``||a||_1 * eta``, without momentum ``len(rates) * lr``.

    Methods divide a client's movement by it, to get an average of the gradients that the client has seen.

    Args:
        groups: the optimizer's parameter groups, which have the same settings.
        rates: the learning rate of each step taken.
        pull: mu of a proximal term, which adds ``mu (y - x)`` to every gradient: here minus mu times the way so far.
    """
    group = next(iter(groups))
    momentum = group["momentum"]
    dampening = group["dampening"]
    nesterov = group["nesterov"]
    moved = 0.0
    velocity = 0.0
    # A product, since a sum of equal numbers would be rounded at every step.
    if not momentum and not pull and len(set(rates)) <= 1:
        return len(rates) * rates[0] if rates else 0.0
    # The same recursion as in torch's SGD, with gradients of 1. As there, the first step is not dampened.
    for step, rate in enumerate(rates):
        gradient = 1.0 - pull * moved
        velocity = gradient if step == 0 else momentum * velocity + (1.0 - dampening) * gradient
        moved += rate * (gradient + momentum * velocity if nesterov else velocity if momentum else gradient)
    return moved


class LocalOptimizer:
    """The local optimizer of a cohort: the user's torch optimizer, which steps the rows of ``values``.

    The parameters of the user's optimizer are replaced by views of ``values`` [C, D]. Neighbouring parameters of one
    group become one tensor, so a step takes few operations, however many layers the model has. An optimizer that is not
    elementwise keeps the module's own parameters and trains one client at a time.

    Args:
        module: the model, whose parameters are views of ``values[0]``.
        layout: where each parameter lies in a vector [D].
        values: the clients' parameters ``[C, D]``, or their coordinates ``[C, R]``.
        rates: learning rate of each parameter group in this round; None for the module's own.
        in_coordinates: whether ``values`` are coordinates. Weight decay is then left to the engine, which adds it to
            the gradients of parameters (see ``weight_decay``).
        trained: names of the parameters that the optimizer steps; None for all.

    Attributes:
        optimizer: the user's torch optimizer.
        is_whole: whether one of its tensors holds all columns: it steps every parameter, in one operation.
        plain_rate: the learning rate, if a step is exactly ``values -= rate * gradients``; else None.

    Raises:
        ValueError: ``values`` are coordinates, and the optimizer's groups differ or it decays weights by itself.
    """

    def __init__(
        self,
        module: LightningModule,
        layout: ParameterLayout,
        values: Tensor,
        rates: list[float] | None,
        in_coordinates: bool = False,
        trained: list[str] | None = None,
    ) -> None:
        self._settings = module, layout, rates, trained  # for `for_rows`
        self.optimizer, configs = build_optimizer(module)
        self._step_schedulers = [config for config in configs if config.interval == "step"]
        self._values = values
        self._layout = layout
        self._rates_taken: list[float] = []  # of this cohort's steps so far
        # A fresh optimizer has the rates of the first round; `LearningRates` knows those of this round.
        for group, rate in zip(self.optimizer.param_groups, rates or (), strict=bool(rates)):
            group["lr"] = rate
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        if any(id(p) not in names for group in self.optimizer.param_groups for p in group["params"]):
            raise ValueError(
                f"The optimizer of {type(module).__name__} holds parameters that are not the module's own: register "
                "them, such as in a `ParameterList` or a `ModuleList`."
            )
        self._names = [
            [names[id(p)] for p in group["params"] if p.requires_grad] for group in self.optimizer.param_groups
        ]
        self._decays = [float(group.get("weight_decay", 0.0)) for group in self.optimizer.param_groups]
        # Which columns of `values` each of the optimizer's parameters is: to give it its gradient, and to shorten it.
        self._spans: list[tuple[torch.nn.Parameter, slice]] = []
        self._in_coordinates = in_coordinates
        self._stacked = in_coordinates or is_elementwise(self.optimizer)
        if in_coordinates:
            self._use_coordinates()
        elif self._stacked:
            for group, members in zip(self.optimizer.param_groups, self._names, strict=True):
                moved = [name for name in members if trained is None or name in trained]
                self._replace(group, layout.spans(moved), self._initial_state(group, members))
        else:
            parameters = dict(module.named_parameters())
            moved = [n for members in self._names for n in members if trained is None or n in trained]
            self._spans = [(parameters[n], layout.slices[n]) for n in moved]
            for group in self.optimizer.param_groups:
                group["params"] = [p for p in group["params"] if any(p is parameter for parameter, _ in self._spans)]
        # Whether a single parameter holds all columns: a plain step is then one operation.
        self.is_whole = [span for _, span in self._spans] == [slice(0, values.shape[1])]
        self.plain_rate = self._find_plain_rate()

    def _find_plain_rate(self) -> float | None:
        """The learning rate if every step is ``values -= rate * gradients``, with the same rate; else None."""
        groups = self.optimizer.param_groups
        if not self.is_plain_sgd or self._step_schedulers or len(groups) > 1 or has_hooks(self.optimizer):
            return None
        rate = groups[0]["lr"]
        is_plain = not groups[0]["weight_decay"] and not groups[0]["maximize"] and isinstance(rate, float)
        return rate if is_plain else None

    @property
    def values(self) -> Tensor:
        """The rows that it steps: parameters [C, D], or coordinates [C, R]."""
        return self._values

    @property
    def steps_module(self) -> bool:
        """Whether it steps the module's own parameters, because it is not elementwise."""
        return not self._stacked

    @property
    def is_sgd(self) -> bool:
        """Whether the optimizer is torch's SGD."""
        return type(self.optimizer) is torch.optim.SGD

    @property
    def is_plain_sgd(self) -> bool:
        """Whether the optimizer is SGD without momentum: it moves by minus the rate times the sum of the gradients."""
        return self.is_sgd and not any(group["momentum"] for group in self.optimizer.param_groups)

    def weight_decay(self) -> Tensor | None:
        """The coupled weight decay of every parameter [D]; None if there is none."""
        if not any(self._decays):
            return None
        decay = torch.zeros(self._layout.dim, dtype=self._values.dtype, device=self._values.device)
        for value, members in zip(self._decays, self._names, strict=True):
            for span in self._layout.spans(members):
                decay[span] = value
        return decay

    @cached_property
    def owned(self) -> Tensor | None:
        """A mask [D] of the parameters that it holds; None if it holds all, or steps coordinates."""
        held = [name for members in self._names for name in members]
        if self._in_coordinates or len(held) == len(self._layout.names):
            return None
        owned = torch.zeros(self._layout.dim, dtype=self._values.dtype, device=self._values.device)
        for span in self._layout.spans(held):
            owned[span] = 1
        return owned

    def movement_scales(self, num_steps: list[int], pull: float = 0.0) -> list[float]:
        """``movement_scale`` of each client, given its number of steps in the round.

        Args:
            num_steps: number of steps of each client [C].
            pull: mu of a proximal term.

        Raises:
            ValueError: the optimizer is not SGD, its groups differ, it maximizes, or the rates are not known yet.
        """
        groups = self.optimizer.param_groups
        if any(group.get("maximize") for group in groups):
            raise ValueError(
                "This method follows a gradient from movement, which `maximize=True` turns around: unset it."
            )
        settings = {(g["lr"], g["momentum"], g["dampening"], g["nesterov"]) for g in groups} if self.is_sgd else set()
        if len(settings) != 1:
            raise ValueError(
                f"This method divides a client's movement by its learning rate, which needs SGD with one set of "
                f"settings; the optimizer is {type(self.optimizer).__name__} with {len(groups)} group(s)."
            )
        # May be called before or after the steps. Those to come have the current rate, unless a scheduler changes it.
        missing = max(num_steps) - len(self._rates_taken)
        if missing > 0 and self._step_schedulers:
            raise ValueError(
                "This method must know the learning rates of a round before it: use a scheduler over rounds."
            )
        rates = self._rates_taken + [float(groups[0]["lr"])] * missing
        scales = {steps: movement_scale(groups, rates[:steps], pull) for steps in set(num_steps)}
        return [scales[steps] for steps in num_steps]

    def restart(self, values: Tensor) -> bool:
        """Reuse this optimizer for the rows of another cohort; False if it is stateful and must be rebuilt."""
        if self.plain_rate is None or values.shape[1] != self._values.shape[1]:
            return False
        self._values = values
        self._rates_taken = []
        return True

    def for_rows(self, values: Tensor) -> "LocalOptimizer":
        """A fresh optimizer with the same settings for other parameters ``values`` [C, D] of the same clients."""
        module, layout, rates, trained = self._settings
        return LocalOptimizer(module, layout, values, rates, trained=trained)

    def narrow(self, active: int) -> None:
        """Step only the first ``active`` clients from now on; the others' values and state stay as they are."""
        if self.plain_rate is not None:  # `step` itself takes as many rows as there are gradients
            return
        for parameter, span in self._spans:
            if not self._stacked or len(parameter) == active:
                continue
            # The parameter object stays, since the optimizer finds its state by it; its data and state get shorter.
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    state[key] = value[:active]
            parameter.data = self._values[:active, span]

    def take_plain_step(self) -> float:
        """Record a plain step that was taken outside of this optimizer; returns its learning rate."""
        assert self.plain_rate is not None
        self._rates_taken.append(self.plain_rate)
        return self.plain_rate

    @property
    def needs_gradients(self) -> bool:
        """Whether a parameter without gradient is another thing than one whose gradient is zero, which may move."""
        return not (self.is_plain_sgd and not any(self._decays))

    def step(self, gradients: Tensor, missing: Sequence[slice] = ()) -> None:
        """Take a step with the gradients [A, D], or [A, R], of the A clients that are still training.

        Args:
            gradients: the gradients.
            missing: columns of parameters that have none, which are left out.
        """
        if self.plain_rate is not None:
            # Exactly what torch's SGD computes, without its overhead, which matters for steps of microseconds.
            self.take_plain_step()
            values = self._values[: gradients.shape[0]]
            if self.is_whole:
                values.add_(gradients, alpha=-self.plain_rate)
            else:
                for _, span in self._spans:
                    values[:, span].add_(gradients[:, span], alpha=-self.plain_rate)
            return
        if missing and self._stacked:
            self._split()
        for parameter, span in self._spans:
            gradient = gradients[:, span]
            # A parameter of the module itself has its own shape instead of [1, size].
            parameter.grad = gradient if parameter.shape == gradient.shape else gradient.reshape(parameter.shape)
            if span in missing:
                parameter.grad = None
        self._rates_taken.append(float(self.optimizer.param_groups[0]["lr"]))
        self.optimizer.step()
        for config in self._step_schedulers:
            advance(config)
            use_python_numbers(self.optimizer)

    def _split(self) -> None:
        """Give each of the module's parameters a tensor, and a state, of its own, so that a step may leave it out."""
        spans = {id(parameter): span for parameter, span in self._spans}
        self._spans, self.is_whole = [], False
        for group in self.optimizer.param_groups:
            joined, group["params"] = group["params"], []
            for parameter in joined:
                span, state = spans[id(parameter)], self.optimizer.state.pop(parameter, {})
                for part in self._layout.slices.values():
                    if not span.start <= part.start < part.stop <= span.stop:
                        continue
                    columns = slice(part.start - span.start, part.stop - span.start)
                    own = torch.nn.Parameter(parameter.data[:, columns])
                    group["params"].append(own)
                    self._spans.append((own, part))
                    for key, value in state.items():
                        is_row = isinstance(value, Tensor) and value.shape == parameter.shape
                        entry = value[:, columns] if is_row else value
                        self.optimizer.state[own][key] = entry.clone() if isinstance(entry, Tensor) else entry

    def _replace(self, group: dict[str, Any], spans: list[slice], initial: dict[str, Any]) -> None:
        """Replace the parameters of a group by views of ``values``.

        Args:
            group: parameter group of the optimizer.
            spans: columns of ``values``, a slice for each new parameter.
            initial: state that the group's old parameters were built with: entries [D] by name.
        """
        for parameter in group["params"]:
            self.optimizer.state.pop(parameter, None)
        group["params"] = []
        for span in spans:
            parameter = torch.nn.Parameter(self._values[:, span])
            group["params"].append(parameter)
            self._spans.append((parameter, span))
            for key, value in initial.items():
                # Every client starts with the same entries. Counters without dimensions are shared by all clients.
                entry = value[span].expand_as(parameter) if isinstance(value, Tensor) and value.dim() else value
                self.optimizer.state[parameter][key] = entry.clone() if isinstance(entry, Tensor) else entry

    def _initial_state(self, group: dict[str, Any], members: list[str]) -> dict[str, Any]:
        """The state that some optimizers (Adagrad) have when they are built, as entries [D] by name.

        Args:
            group: parameter group of the optimizer.
            members: names of its parameters.
        """
        initial: dict[str, Any] = {}
        trained = [p for p in group["params"] if p.requires_grad]
        for name, parameter in zip(members, trained, strict=True):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.dim():
                    initial.setdefault(key, value.new_zeros(self._layout.dim))[self._layout.slices[name]] = (
                        value.flatten()
                    )
                else:
                    initial[key] = value
        return initial

    def _use_coordinates(self) -> None:
        """Let a single group step all coordinates, since a coordinate does not belong to any one parameter.

        Raises:
            ValueError: the optimizer cannot run on coordinates, because it treats parameters differently.
        """
        groups = self.optimizer.param_groups
        ignored = {"params", "weight_decay"}
        settings = [{k: v for k, v in group.items() if k not in ignored} for group in groups]
        if has_hooks(self.optimizer):
            raise ValueError(
                f"{type(self.optimizer).__name__} has hooks of its own, which cannot run on subspace coordinates."
            )
        if type(self.optimizer) not in ELEMENTWISE:
            raise ValueError(
                f"{type(self.optimizer).__name__} is not elementwise and cannot run on subspace coordinates."
            )
        if any(other != settings[0] for other in settings):
            raise ValueError(
                "On subspace coordinates all parameter groups must share their settings (but weight_decay)."
            )
        # Since torch 2.7, Adam's groups have an entry for it, which AdamW sets; before, AdamW was a separate class.
        is_decoupled = isinstance(self.optimizer, torch.optim.AdamW) or groups[0].get("decoupled_weight_decay", False)
        if any(self._decays) and is_decoupled:
            raise ValueError(
                f"{type(self.optimizer).__name__} decays the weights by itself, which has no meaning on subspace "
                "coordinates; set weight_decay to 0 or use an optimizer with coupled weight decay."
            )
        for group in groups:
            group["weight_decay"] = 0.0  # `_decays` has it, for the engine; see `weight_decay`
        if any(self._initial_state(group, names) for group, names in zip(groups, self._names, strict=True)):
            raise ValueError(
                f"{type(self.optimizer).__name__} starts with a state of its own, one entry a parameter, "
                "which has no meaning on subspace coordinates."
            )
        del groups[1:]
        self._replace(groups[0], [slice(0, self._values.shape[1])], {})
