"""All that a module holds besides parameters and buffers, as values that can be compared.

A step may read whatever its module holds: numbers, lists, tensors that are no buffers, objects. Fast ways of computing
a step rest on what that is, so that it must be known when it changes.
"""

from __future__ import annotations

import functools
import itertools
import math
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lfl.generators import OPAQUE

_VIEWS = {"_flat_weights", "_flat_weights_names", "_flat_weight_refs", "_all_weights"}
_MANY = 20_000  # objects and entries of containers that are looked at, in all that a value holds
# The two for logs are there while steps are recorded; the rest are views of a recurrent layer's parameters.
_INTERNAL = frozenset(vars(LightningModule())) | {"log", "log_dict"} | _VIEWS
_PLAIN = (str, bytes, int, complex, type(None), torch.dtype, torch.device, torch.Size, type)


class _Held:
    """A tensor as it was: the same object, not written into since. Holding it keeps its address from being reused."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._content = tensor, _content(tensor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self._tensor is other._tensor and self._content == other._content

    __hash__ = None  # type: ignore[assignment]


class Same:
    """An object that is compared by identity."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def attributes_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The user's attributes of a module and of its submodules: qualified names and values."""
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if is_users(name):
                yield f"{prefix}.{name}" if prefix else name, value


def is_users(name: str) -> bool:
    """Whether an attribute of a module is the user's, by its name: not Lightning's, nor torch's."""
    return name not in _INTERNAL


def flags_of(module: nn.Module) -> dict[str, Any]:
    """The training mode of every submodule and ``requires_grad`` of every parameter, by name; and which have hooks."""
    flags = {f"{name}.training": part.training for name, part in module.named_modules()}
    flags |= {f"{name}.requires_grad": p.requires_grad for name, p in module.named_parameters()}
    flags |= {f"{name}.hooks": has_gradient_hooks(p) for name, p in module.named_parameters()}
    return flags | {f"{name}.hooks": _number_of_hooks(part) for name, part in module.named_modules()}


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether the user has put hooks on a parameter's gradient."""
    return bool(parameter._backward_hooks) or bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def _number_of_hooks(part: nn.Module) -> tuple[int, ...]:
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    # The keys count up: another hook in place of one has another.
    return tuple(key for some in hooks for key in some)


def values_of(module: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    """Comparable values of attributes that a step has read, by name; they may be those of classes."""
    parts = dict(module.named_modules())
    values = {}
    for name in names:
        owner, _, attribute = name.rpartition(".")
        value = getattr(parts.get(owner), attribute, None)
        # A submodule's own attributes are read by themselves.
        values[name] = Same(value) if isinstance(value, nn.Module) else comparable(value)
    return values


def may_change(part: nn.Module, name: str) -> bool:
    """Whether an attribute that a step reads is the user's: no parameter or buffer, and no method of a library."""
    if name in _INTERNAL or name.startswith("__") or name in part._parameters or name in part._buffers:
        return False
    if name in vars(part) or name in part._modules or name == "forward":
        return True
    owner = next((kind for kind in type(part).__mro__ if name in vars(kind)), None)
    return owner is not None and owner.__module__.split(".")[0] not in (*OPAQUE, "torch", "torchmetrics")


def comparable(value: Any) -> Any:
    """A value equal to an earlier one of the same object if nothing in it has changed.

    Tensors are equal if they are the same object and nobody has written into it; objects, if all that they hold is.
    """
    return _comparable(value, _Walk())


class _Walk:
    """A walk through all that a value holds: what has been met, and how much may still be looked at."""

    def __init__(self) -> None:
        self._left, self._met = _MANY, set[int]()

    def enters(self, value: object) -> bool:
        """Whether to look into a container or an object: once, and while there are not too many."""
        self._left -= 1
        if self._left < 0 or id(value) in self._met:
            return False
        self._met.add(id(value))
        return True

    def some(self, entries: Iterable[Any]) -> Iterator[Any]:
        """Those of the entries that may still be looked at."""
        for entry in entries:
            if self._left <= 0:
                return
            self._left -= 1
            yield entry


def _comparable(value: Any, walk: _Walk) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return _Held(value)
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), value.tobytes() if value.dtype != object else Same(value)
    if isinstance(value, np.generic):
        return repr(value)
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, types.MethodType):
        return Same(value.__func__), Same(value.__self__)
    if not walk.enters(value):
        return Same(value)
    if isinstance(value, Mapping):
        return _entries_of(value, walk)
    if isinstance(value, list | tuple | deque):
        return len(value), [_comparable(entry, walk) for entry in walk.some(value)]
    if isinstance(value, set | frozenset):
        return len(value), sorted(repr(entry) for entry in walk.some(value))
    if isinstance(value, functools.partial):
        parts = value.func, *value.args, *value.keywords.values()
        return Same(value), [_comparable(part, walk) for part in parts]
    held = {} if _is_opaque(value) else _held_by(value)
    # What it holds is gathered anew each time, and could not be compared by identity.
    return Same(value) if not held else (Same(value), _entries_of(held, walk))


def _entries_of(value: Mapping[Any, Any], walk: _Walk) -> Any:
    return len(value), [(_comparable(k, walk), _comparable(v, walk)) for k, v in walk.some(value.items())]


def _held_by(value: object) -> dict[str, Any]:
    """The attributes that an object holds, those in slots included."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}


def _is_opaque(value: object) -> bool:
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType | types.ModuleType):
        return True
    return type(value).__module__.split(".")[0] in OPAQUE


def _content(tensor: Tensor) -> tuple[Any, ...]:
    # All, since writes through `.data` are not counted, nor those to tensors of inference mode, and a sum may stay; the
    # last one changes where entries change places.
    version = 0 if tensor.is_inference() else tensor._version
    try:
        numbers = tensor.detach().double().flatten()
        places = torch.arange(len(numbers), dtype=numbers.dtype, device=numbers.device)
        return version, *(repr(float(total)) for total in (numbers.sum(), numbers @ numbers, numbers @ places))
    except (RuntimeError, NotImplementedError):  # without numbers: sparse, on no device, or left over from vmap
        return (version,)
