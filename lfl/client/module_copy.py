"""Copies of a user's module, on which steps can be tried without a trace."""

from __future__ import annotations

import copy
import operator
import types
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn


def copy_of(module: LightningModule) -> LightningModule:
    """Copy a module with all that it holds, so that nothing done to the copy is seen in the module.

    Shared are the trainer, what cannot be copied (open files, running loggers), and, for as long as nobody writes to
    them, the numbers of frozen parameters.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        _share(vars(part).get("_fabric"), memo)
        for parameter in part.parameters(recurse=False):
            if not parameter.requires_grad:
                memo[id(parameter)] = nn.Parameter(_lazy_copy(parameter.data), requires_grad=False)
    try:
        return _joined(copy.deepcopy(module, dict(memo)), module)
    except Exception:  # whatever an object of the user's raises: find out which, and share it
        for part in module.modules():
            for name, value in vars(part).items():
                if not isinstance(value, nn.Module) and not name.startswith(("_parameters", "_buffers", "_modules")):
                    _share_if_needed(value, memo)
        return _joined(copy.deepcopy(module, memo), module)


def _lazy_copy(tensor: Tensor) -> Tensor:
    """A copy whose memory is that of the original until one of both is written to: it may be most of the model."""
    try:
        return torch._lazy_clone(tensor)
    except (AttributeError, RuntimeError):  # an older torch, or memory that is not torch's own (a mapped file)
        return tensor.clone()


def _joined(twin: LightningModule, module: LightningModule) -> LightningModule:
    """Give a copy what copying leaves out: its trainer, and itself in the functions that it holds."""
    twins: dict[int, nn.Module] = {id(own): part for own, part in zip(module.modules(), twin.modules(), strict=True)}
    for original in module.modules():
        part = twins[id(original)]
        if "_trainer" in vars(original):  # Lightning leaves it out of what is copied or pickled
            vars(part)["_trainer"] = vars(original)["_trainer"]
        dicts: list[Any] = [vars(part), part._forward_hooks, part._forward_pre_hooks]
        for held in dicts:
            for name, value in list(held.items()):
                if isinstance(value, types.FunctionType | types.MethodType):
                    held[name] = _of_twin(value, twins)
    return twin


def _of_twin(value: Any, twins: dict[int, nn.Module]) -> Any:
    """A function or method with the copies in place of the modules that it is bound to or closes over."""
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, twins.get(id(value.__self__), value.__self__))
    if not isinstance(value, types.FunctionType):
        return twins.get(id(value), value)
    cells = tuple(_cell(cell, twins) for cell in value.__closure__ or ())
    defaults = tuple(_of_twin(default, twins) for default in value.__defaults__ or ())
    if cells == (value.__closure__ or ()) and all(map(operator.is_, defaults, value.__defaults__ or ())):
        return value  # it knows nothing of the module
    twin = types.FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells)
    twin.__kwdefaults__, twin.__dict__ = value.__kwdefaults__, dict(vars(value))
    return twin


def _cell(cell: types.CellType, twins: dict[int, nn.Module]) -> types.CellType:
    try:
        value = cell.cell_contents
    except ValueError:  # empty yet
        return cell
    # One function may close over another, but not without end.
    is_own = id(value) in twins or isinstance(value, types.MethodType)
    twin = _of_twin(value, twins) if is_own else value
    return cell if twin is value else types.CellType(twin)


def _share(value: Any, memo: dict[int, Any]) -> None:
    if value is not None:
        memo[id(value)] = value


def _share_if_needed(value: Any, memo: dict[int, Any]) -> None:
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:  # as above
        _share(value, memo)
