"""Copies of a user's module, on which steps can be tried without a trace."""

from __future__ import annotations

import copy
import functools
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

_MANY = 10_000  # entries of a container among which functions are looked for


def copy_of(module: LightningModule) -> LightningModule:
    """Copy a module with all that it holds, so that nothing done to the copy is seen in the module.

    Shared are the trainer and what cannot be copied (open files, running loggers). Frozen parameters are copied too,
    also where they are most of the model: modules change them (momentum encoders, mean teachers) by ways nobody sees.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        _share(vars(part).get("_fabric"), memo)
    try:
        return _joined(copy.deepcopy(module, dict(memo)), module)
    except Exception:  # whatever an object of the user's raises: find out which, and share it
        for part in module.modules():
            for name, value in vars(part).items():
                if not isinstance(value, nn.Module) and not name.startswith(("_parameters", "_buffers", "_modules")):
                    _share_if_needed(value, memo)
        return _joined(copy.deepcopy(module, memo), module)


def _joined(twin: LightningModule, module: LightningModule) -> LightningModule:
    """Give a copy what copying leaves out: its trainer, and itself in the functions that it holds."""
    twins: dict[int, Any] = {}
    for owns in (nn.Module.modules, nn.Module.parameters, nn.Module.buffers):
        twins |= {id(own): copied for own, copied in zip(owns(module), owns(twin), strict=True)}
    for original in module.modules():
        part = twins[id(original)]
        if "_trainer" in vars(original):  # Lightning leaves it out of what is copied or pickled
            vars(part)["_trainer"] = vars(original)["_trainer"]
        dicts: list[Any] = [vars(part), part._forward_hooks, part._forward_pre_hooks]
        for held in dicts:
            for name, value in list(held.items()):
                held[name] = _of_twin(value, twins)
    return twin


def _of_twin(value: Any, twins: Mapping[int, Any], within: tuple[int, ...] = ()) -> Any:
    """A value with copies in place of what functions in it are bound to or close over.

    Args:
        value: a function or method, or a list, tuple or dict of such; all else is returned as it is.
        twins: the copies of modules, parameters and buffers, by the ids of the originals.
        within: ids of the containers and functions that lead here, as they may lead back.
    """
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, twins.get(id(value.__self__), value.__self__))
    if id(value) in within:
        return value

    def of_twin(part: Any) -> Any:
        return twins[id(part)] if id(part) in twins else _of_twin(part, twins, (*within, id(value)))

    if isinstance(value, types.FunctionType):
        return _function_of_twin(value, of_twin)
    if type(value) is functools.partial:
        parts = [value.func, *value.args, *value.keywords.values()]
        found = [of_twin(part) for part in parts]
        if all(map(operator.is_, found, parts)):
            return value
        function, *arguments = found
        places = arguments[: len(value.args)]
        return functools.partial(function, *places, **dict(zip(value.keywords, arguments[len(places) :], strict=True)))
    if type(value) not in (list, tuple, dict) or len(value) > _MANY:
        return value
    entries = list(value.values()) if type(value) is dict else list(value)
    found = [of_twin(entry) for entry in entries]
    if all(map(operator.is_, found, entries)):
        return value
    return dict(zip(value, found, strict=True)) if type(value) is dict else type(value)(found)


def _function_of_twin(value: types.FunctionType, of_twin: Callable[[Any], Any]) -> types.FunctionType:
    own_cells, own_defaults = value.__closure__ or (), value.__defaults__ or ()
    cells = tuple(_cell(cell, of_twin) for cell in own_cells)
    defaults = tuple(map(of_twin, own_defaults))
    if all(map(operator.is_, (*cells, *defaults), (*own_cells, *own_defaults))):
        return value  # it knows nothing of the module
    twin = types.FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells)
    twin.__kwdefaults__, twin.__dict__ = value.__kwdefaults__, dict(vars(value))
    return twin


def _cell(cell: types.CellType, of_twin: Callable[[Any], Any]) -> types.CellType:
    try:
        value = cell.cell_contents
    except ValueError:  # empty yet
        return cell
    twin = of_twin(value)
    return cell if twin is value else types.CellType(twin)


def _share(value: Any, memo: dict[int, Any]) -> None:
    if value is not None:
        memo[id(value)] = value


def _share_if_needed(value: Any, memo: dict[int, Any]) -> None:
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:  # as above
        _share(value, memo)
