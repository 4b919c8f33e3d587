"""Copies of a user's module, on which steps can be tried without a trace."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Iterable
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

_MANY = 10_000  # entries of a container among which functions are looked for
_REACHING = (types.FunctionType, types.MethodType, functools.partial, weakref.ref, tuple)


def copy_of(module: LightningModule) -> LightningModule:
    """Copy a module with all that it holds, so that nothing done to the copy is seen in the module.

    Shared are the trainer and what cannot be copied (open files, running loggers). Frozen parameters are copied too,
    also where they are most of the model: modules change them (momentum encoders, mean teachers) by ways nobody sees.
    """
    shared: dict[int, Any] = {}
    for part in module.modules():
        _share(vars(part).get("_fabric"), shared)
    copied = dict(shared)
    try:
        return _joined(copy.deepcopy(module, copied), module, copied)
    except Exception:  # whatever an object of the user's raises: find out which, and share it
        for part in module.modules():
            for name, value in vars(part).items():
                if not isinstance(value, nn.Module) and not name.startswith(("_parameters", "_buffers", "_modules")):
                    _share_if_needed(value, shared)
        copied = dict(shared)
        return _joined(copy.deepcopy(module, copied), module, copied)


def _joined(twin: LightningModule, module: LightningModule, copied: dict[int, Any]) -> LightningModule:
    """Give a copy what copying leaves out: its trainer, hooks of parameters, and itself in the functions it holds.

    Args:
        twin: the copy.
        module: the original.
        copied: the memo of the copying: copies by the ids of the originals.
    """
    # With its own key, a memo holds the originals.
    found = {key: value for key, value in copied.items() if key not in (id(copied), id(value))}
    for owns in (nn.Module.modules, nn.Module.parameters, nn.Module.buffers):
        found |= {id(own): other for own, other in zip(owns(module), owns(twin), strict=True)}
    for original in module.modules():
        if "_trainer" in vars(original):  # Lightning leaves it out of what is copied or pickled
            vars(found[id(original)])["_trainer"] = vars(original)["_trainer"]
    twins = _Twins(found)
    for value in list(found.values()):
        for held in (value, getattr(value, "__dict__", None)):
            _replace_functions(held, twins)
    for own, parameter in zip(module.parameters(), twin.parameters(), strict=True):
        if parameter.requires_grad:
            for hook in (own._backward_hooks or {}).values():
                parameter.register_hook(twins.of(hook))
            for hook in (getattr(own, "_post_accumulate_grad_hooks", None) or {}).values():
                parameter.register_post_accumulate_grad_hook(twins.of(hook))
    return twin


def _replace_functions(held: Any, twins: _Twins) -> None:
    """Put into a copied list or dict, in place of functions that reach the original, those that reach the copy."""
    if not isinstance(held, list | dict) or len(held) > _MANY:
        return
    for key, value in list(held.items() if isinstance(held, dict) else enumerate(held)):
        if isinstance(value, _REACHING) and (twin := twins.of(value)) is not value:
            held[key] = twin


class _Twins:
    """Copies of what functions are bound to or close over, and of such functions.

    Args:
        found: copies of all else by the ids of the originals.
    """

    def __init__(self, found: dict[int, Any]) -> None:
        self._found = found  # and what is made here, which is found when it is met again
        self._cells: dict[int, types.CellType] = {}

    def of(self, value: Any) -> Any:
        """The copy of a value; the value itself if nothing that has a copy is reached from it."""
        if id(value) in self._found or not self._reaches(value, set()):
            return self._found.get(id(value), value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.of(value.__self__))
        if isinstance(value, weakref.ref):
            return weakref.ref(self.of(value()))
        if isinstance(value, functools.partial):
            keywords = {name: self.of(part) for name, part in value.keywords.items()}
            return functools.partial(self.of(value.func), *map(self.of, value.args), **keywords)
        if isinstance(value, list):
            entries: list[Any] = []
            self._found[id(value)] = entries  # first, since they may lead back
            entries.extend(map(self.of, value))
            return entries
        if isinstance(value, dict):
            named: dict[Any, Any] = {}
            self._found[id(value)] = named
            named.update((key, self.of(part)) for key, part in value.items())
            return named
        parts = [self.of(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)

    def _function(self, value: types.FunctionType) -> types.FunctionType:
        cells = [self._cells.setdefault(id(cell), types.CellType()) for cell in value.__closure__ or ()]
        twin = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, tuple(cells))
        self._found[id(value)] = twin  # first, since what it closes over may lead back
        for cell, own in zip(cells, value.__closure__ or (), strict=True):
            for content in _content_of(own):
                cell.cell_contents = self.of(content)
        twin.__defaults__ = None if value.__defaults__ is None else tuple(map(self.of, value.__defaults__))
        twin.__kwdefaults__ = {name: self.of(part) for name, part in (value.__kwdefaults__ or {}).items()}
        twin.__dict__.update(vars(value))
        return twin

    def _reaches(self, value: Any, met: set[int]) -> bool:
        if id(value) in self._found:
            return True
        if id(value) in met:
            return False
        met.add(id(value))
        return any(self._reaches(part, met) for part in _parts_of(value))


def _parts_of(value: Any) -> Iterable[Any]:
    """The values that a function is bound to or closes over, or that a container of functions holds; else none."""
    if isinstance(value, types.FunctionType):
        cells = [content for cell in value.__closure__ or () for content in _content_of(cell)]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if type(value) in (list, dict) or isinstance(value, tuple):
        return () if len(value) > _MANY else list(value.values() if isinstance(value, dict) else value)
    return ()


def _content_of(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # empty yet
        return []


def _share(value: Any, memo: dict[int, Any]) -> None:
    if value is not None:
        memo[id(value)] = value


def _share_if_needed(value: Any, memo: dict[int, Any]) -> None:
    """Share what cannot be copied: of containers the entries, of tensors that were computed the graph alone."""
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:  # as above
        if isinstance(value, Tensor) and not value.is_leaf:
            memo[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
        elif isinstance(value, list | tuple | dict):
            for entry in value.values() if isinstance(value, dict) else value:
                _share_if_needed(entry, memo)
        else:
            _share(value, memo)
