"""Copies of a user's module, on which steps can be tried without a trace."""

from __future__ import annotations

import copy
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn


def copy_of(module: LightningModule) -> LightningModule:
    """Copy a module with all that it holds, so that nothing done to the copy is seen in the module.

    Shared are the trainer, the numbers of frozen parameters, and what cannot be copied (open files, running loggers).
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        _share(vars(part).get("_fabric"), memo)
        for parameter in part.parameters(recurse=False):
            if not parameter.requires_grad:
                # Another parameter with the same numbers, which no step changes: they may be most of the model.
                memo[id(parameter)] = nn.Parameter(parameter.data, requires_grad=False)
    try:
        return _with_trainer(copy.deepcopy(module, dict(memo)), module)
    except Exception:  # whatever an object of the user's raises: find out which, and share it
        for part in module.modules():
            for name, value in vars(part).items():
                if not isinstance(value, nn.Module) and not name.startswith(("_parameters", "_buffers", "_modules")):
                    _share_if_needed(value, memo)
        return _with_trainer(copy.deepcopy(module, memo), module)


def _with_trainer(twin: LightningModule, module: LightningModule) -> LightningModule:
    # Lightning leaves it out of what is copied or pickled.
    for part, original in zip(twin.modules(), module.modules(), strict=True):
        if "_trainer" in vars(original):
            vars(part)["_trainer"] = vars(original)["_trainer"]
    return twin


def _share(value: Any, memo: dict[int, Any]) -> None:
    if value is not None:
        memo[id(value)] = value


def _share_if_needed(value: Any, memo: dict[int, Any]) -> None:
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:  # as above
        _share(value, memo)
