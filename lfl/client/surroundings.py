"""All that the code of a module can reach besides the module: globals, attributes of classes, closures.

A training step may count in a global, or read one that a hook sets. Nothing in the module tells of that.
"""

from __future__ import annotations

import copy
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from lfl.client.attributes import comparable

_LIBRARIES = (
    "torch",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "torchmetrics",
    "torchvision",
    "lfl",
    "numpy",
    "transformers",
    "peft",
)
_DEPTH = 3  # of functions that functions call
_CODE = (types.FunctionType, types.ModuleType, types.BuiltinFunctionType, type, staticmethod, classmethod, property)


class Surroundings:
    """The places outside of a module that its code can reach, with what is in them.

    Args:
        module: the module. Only places that its own code, and the functions it calls by name, refer to are looked at.
        names: of the attributes and methods that matter, qualified by those of submodules; None for all.
    """

    def __init__(self, module: nn.Module, names: Iterable[str] | None = None) -> None:
        wanted = None if names is None else {name.rpartition(".")[2] for name in names}
        self._places: dict[str, tuple[Any, Any]] = {}  # by name: what holds the value, and under which key
        kinds = {kind for part in module.modules() for kind in type(part).__mro__ if _is_own(kind.__module__)}
        holders = [*(vars(part) for part in module.modules()), *(vars(kind) for kind in kinds)]
        functions = [v for held in holders for n, v in held.items() if wanted is None or n in wanted]
        for kind in kinds:
            for name, value in vars(kind).items():
                if not name.startswith("__") and not isinstance(value, _CODE) and not hasattr(value, "__get__"):
                    self._places[f"{kind.__name__}.{name}"] = kind, name
        for function in functions:
            self._add(function, _DEPTH)

    def state(self) -> dict[str, Any]:
        """Comparable values of what is in each place, by name."""
        return {name: comparable(_get(*place)) for name, place in self._places.items()}

    def snapshot(self) -> dict[str, tuple[Any, Any]]:
        """The value in each place, with a copy of it if it may be changed in place."""
        values = {name: _get(*place) for name, place in self._places.items()}
        return {name: (value, _copied(value)) for name, value in values.items()}

    def restore(self, snapshot: dict[str, tuple[Any, Any]]) -> None:
        """Put back what ``snapshot`` returned."""
        for name, (value, content) in snapshot.items():
            owner, key = self._places[name]
            if _get(owner, key) is not value:
                _set(owner, key, value)
            _refill(value, content)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put back what was in each place, whatever happens in between."""
        around = self.snapshot()
        try:
            yield
        finally:
            self.restore(around)

    def _add(self, function: Any, depth: int) -> None:
        """Add the globals and the closure of a function, and of the functions that it calls by name."""
        function = getattr(function, "fget", getattr(function, "__func__", function))  # of a property, or a method
        if not isinstance(function, types.FunctionType) or not _is_own(function.__module__ or "") or not depth:
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._look_at(name, cell, "cell_contents", depth)
        for name in _names(function.__code__):
            if name in function.__globals__:
                self._look_at(name, function.__globals__, name, depth)

    def _look_at(self, name: str, owner: Any, key: Any, depth: int) -> None:
        try:
            value = _get(owner, key)
        except ValueError:  # a cell that is empty yet
            return
        if isinstance(value, types.FunctionType | types.MethodType):
            self._add(value, depth - 1)
        elif not isinstance(value, (*_CODE, nn.Module)) and name not in self._places:
            self._places[name] = owner, key


def _is_own(module: str) -> bool:
    return module.split(".")[0] not in (*_LIBRARIES, "builtins", "abc", "typing")


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # functions within it
            yield from _names(constant)


def _get(owner: Any, key: Any) -> Any:
    return owner[key] if isinstance(owner, dict) else getattr(owner, key)


def _set(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, dict):
        owner[key] = value
    else:
        setattr(owner, key, value)


def _copied(value: Any) -> Any:
    """A copy of a container's content, deep where that can be done."""
    if not isinstance(value, list | set | deque | Mapping):
        return None
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever something in it raises
        return copy.copy(value)


def _refill(value: Any, content: Any) -> None:
    """Give a container its content back, as the same object."""
    if content is None or comparable(value) == comparable(content):
        return
    if isinstance(value, list | deque):
        value.clear()
        value.extend(content)
    elif isinstance(value, set | dict):
        value.clear()
        value.update(content)
