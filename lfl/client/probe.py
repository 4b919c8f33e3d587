"""Finding out what a training step does, by taking some on a copy of the module and watching.

What is looked at: which generators move, which buffers, parameters and attributes change, what is read that will not be
the same at the next step (``current_epoch``, ``batch_idx``, the clock), and which parameters get a gradient.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lfl.client.attributes import attributes_of, comparable, flags_of, has_gradient_hooks, may_change
from lfl.client.checkpoints import client_random
from lfl.client.model import ClientModel
from lfl.client.surroundings import Surroundings
from lfl.client.traits import INDEX, StepTraits
from lfl.client.value_reads import ValueReads
from lfl.generators import HostGenerators

# What a trainer says of itself that stays the same during a run. All else may change from round to round: `strategy`,
# too, by which `LightningModule.optimizers` finds learning rates, and `callbacks`, which may set what a step reads.
_CONSTANTS = {
    *("accelerator", "datamodule", "default_root_dir", "device", "devices", "fabric", "global_rank"),
    *("is_global_zero", "local_rank", "log_dir", "logger", "loggers", "max_epochs", "max_rounds", "model"),
    *("num_clients", "num_devices", "num_nodes", "precision", "seed", "world_size"),
}
_SAID = {"strategy": "optimizers()", "lr_scheduler_configs": "lr_schedulers()"}  # what a step calls to read them
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time")
_LIBRARIES = ("/torch/", "/lightning/", "/torchmetrics/", "/lfl/", "/numpy/")


class NoGradientError(ValueError):
    """No parameter gets a gradient from the training step's loss."""


def probe(model: ClientModel, batches: Sequence[Any], keys: Sequence[Tensor]) -> StepTraits:
    """Take a training step on each of some batches, on copies of the module; the module itself is left alone.

    Args:
        model: the model.
        batches: batches of single clients.
        keys: a key for the random draws of each.

    Raises:
        NoGradientError: no parameter gets a gradient.
    """
    traits = _watch_step(model.copy(), batches[0], keys[0])
    for batch, key in zip(batches[1:], keys[1:], strict=True):
        traits |= _watch_step(model.copy(), batch, key)
    if INDEX in traits.reads:
        for index in (1, 2, 3):
            traits |= _watch_step(model.copy(), batches[0], keys[0], index)
    trained = [name for name, p in zip(model.layout.names, model.parameters, strict=True) if p.requires_grad]
    if len(traits.without_gradient) == len(trained):
        raise NoGradientError(
            f"No parameter of {type(model.module).__name__} gets a gradient: `training_step` must return a loss that "
            "was computed from the module's parameters, and not detached from them."
        )
    hooked = [name for name, p in zip(model.layout.names, model.parameters, strict=True) if has_gradient_hooks(p)]
    return replace(traits, gradient_hooks=tuple(hooked), needs_backward=traits.needs_backward or bool(hooked))


def _watch_step(model: ClientModel, batch: Any, key: Tensor, index: int = 0) -> StepTraits:
    """Take one step with a model that is thrown away afterwards."""
    module = model.module
    generators, surroundings = HostGenerators(*module.modules()), Surroundings(module)
    reads: set[str] = set()
    read_attributes: set[str] = set()
    of_classes: set[str] = set()
    if _reads_index(module.training_step):
        reads.add(INDEX)
    with (
        surroundings.kept(),
        generators.kept(),
        model.recording(),
        watched_trainer(module, reads),
        _watched_clock(reads),
    ):
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
        attributes, outside, before = _held(module), surroundings.state(), generators.state()
        with (
            client_random(key) as random,
            ValueReads() as values,
            _watched_attributes(module, read_attributes, of_classes),
        ):
            model.recorder.start()
            loss = model.run_step(batch, index)
            # Hooks of the backward pass are part of a step.
            missing, needs_backward = _without_gradient(model, loss, lambda: model.run_step(batch, index))
        moved, logged = generators.moved_since(before), tuple(model.recorder.metrics)
        changed = _changed(attributes, _held(module))
        changed_outside = [*_changed(outside, surroundings.state()), *sorted(of_classes)]
        changed_buffers = [n for n, b in module.named_buffers() if n not in buffers or not _equal(b, buffers[n])]
        changed_parameters = [n for n, p in module.named_parameters() if not _equal(p, parameters[n])]
    # An iterator does not show that it has moved on.
    attributes = dict(attributes_of(module))
    changed += [n for n in read_attributes if isinstance(attributes.get(n), Iterator) and n not in changed]
    return StepTraits(
        random_operations=random.draws > 0,
        unbatched_layers=random.layers > 0,
        host_draws=tuple(moved),
        changed_buffers=tuple(changed_buffers),
        changed_parameters=tuple(changed_parameters),
        changed_attributes=tuple(changed),
        changed_outside=tuple(changed_outside),
        logged_metrics=logged,
        reads=tuple(sorted(reads)),
        reads_values=tuple(sorted(values.found)),
        read_attributes=tuple(sorted(read_attributes)),
        without_gradient=missing,
        missing=missing,
        needs_backward=needs_backward,
    )


def _held(module: nn.Module) -> dict[str, Any]:
    return {name: comparable(value) for name, value in attributes_of(module)} | flags_of(module)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what has changed, is new or is gone."""
    changed = [name for name, value in after.items() if name not in before or before[name] != value]
    return changed + [name for name in before if name not in after]


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


def _without_gradient(model: ClientModel, loss: Tensor, again: Callable[[], Tensor]) -> tuple[tuple[str, ...], bool]:
    """Names of the parameters that get no gradient, and whether some get theirs from ``backward`` only."""
    trained = {n: p for n, p in zip(model.layout.names, model.parameters, strict=True) if p.requires_grad}
    if not trained:
        return (), False
    if not loss.requires_grad:
        return tuple(trained), False
    try:
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        missing = [name for name, gradient in zip(trained, gradients, strict=True) if gradient is None]
    except RuntimeError:  # reentrant checkpoints refuse to be differentiated but by `backward`
        missing = list(trained)
    if not missing:
        return (), False
    # A reentrant checkpoint hides what is in it from `autograd.grad`; `backward` enters it.
    again().backward()
    found = [name for name in missing if trained[name].grad is not None]
    return tuple(name for name in missing if name not in found), bool(found)


def _reads_index(step: Callable[..., Any]) -> bool:
    """Whether a training step looks at its second argument: whether its code ever loads it."""
    try:
        parameters = list(inspect.signature(step).parameters.values())
        code = inspect.unwrap(getattr(step, "__func__", step)).__code__
    except (AttributeError, TypeError, ValueError):
        return True  # no code to look at: it may
    names = [p.name for p in parameters[1:2]] + [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    loads = (i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD_"))
    # From Python 3.13 on an instruction may load two variables.
    loaded = {name for value in loads for name in (value if isinstance(value, tuple) else (value,))}
    return any(name in loaded for name in names)


class _WatchedTrainer:
    """Stands in for a trainer, and notes what is read that may be another at the next step."""

    def __init__(self, trainer: Any, reads: set[str]) -> None:
        self._watched, self._reads = trainer, reads

    def __getattr__(self, name: str) -> Any:
        if name not in _CONSTANTS and not name.startswith("_"):
            self._reads.add(f"`{_SAID.get(name, name)}`")
        return getattr(self._watched, name)


@contextmanager
def watched_trainer(module: nn.Module, reads: set[str]) -> Iterator[None]:
    """Note in ``reads`` what a module reads of its trainer that may be another at the next step."""
    owners = [part for part in module.modules() if vars(part).get("_trainer") is not None]
    trainers = [vars(part)["_trainer"] for part in owners]
    for part, trainer in zip(owners, trainers, strict=True):
        vars(part)["_trainer"] = _WatchedTrainer(trainer, reads)
    try:
        yield
    finally:
        for part, trainer in zip(owners, trainers, strict=True):
            vars(part)["_trainer"] = trainer


@contextmanager
def _watched_clock(reads: set[str]) -> Iterator[None]:
    """Note calls of clocks from code that is not a library's."""

    def note(frame: Any, event: str, called: Any) -> None:
        if event != "c_call":
            return
        name = getattr(called, "__name__", "")
        is_clock = getattr(called, "__module__", None) == "time" and name.removesuffix("_ns") in _CLOCKS
        is_date = name in ("now", "today", "utcnow") and getattr(called, "__self__", None).__class__ is type
        if (is_clock or is_date) and not any(part in frame.f_code.co_filename for part in _LIBRARIES):
            reads.add("the clock")

    if sys.getprofile() is not None:  # somebody else's profiler, which may not be put back by everyone
        yield
        return
    collects = gc.isenabled()
    gc.disable()  # what others have hung into the collector would run in the midst of the step
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()


@contextmanager
def _watched_attributes(module: nn.Module, seen: set[str], written: set[str]) -> Iterator[None]:
    """Note which of the module's own attributes are read, and which of its classes are written to.

    Its parts get classes that tell, and that take what a step writes by ``type(self).steps += 1``.
    """
    parts = [(prefix, part, type(part)) for prefix, part in module.named_modules()]
    for prefix, part, kind in parts:
        try:
            part.__class__ = _telling(kind, prefix, seen)
        except TypeError:  # a class of C code, or with slots: everything may be read
            seen |= {f"{prefix}.{name}" if prefix else name for name in vars(part) if may_change(part, name)}
    at_first = [set(vars(type(part))) for _, part, _ in parts]
    try:
        yield
    finally:
        for (_, part, kind), told in zip(parts, at_first, strict=True):
            if type(part) is not kind:
                written |= {f"{kind.__name__}.{name}" for name in vars(type(part)) if name not in told}
            part.__class__ = kind
    own = dict(module.named_modules())
    seen -= {name for name in seen if not may_change(own[name.rpartition(".")[0]], name.rpartition(".")[2])}


def _telling(kind: type, prefix: str, seen: set[str]) -> type:
    def tell(self: Any, name: str) -> Any:
        seen.add(f"{prefix}.{name}" if prefix else name)
        return kind.__getattribute__(self, name)  # type: ignore[call-arg]

    return type(kind.__name__, (kind,), {"__getattribute__": tell, "__module__": kind.__module__})
