"""The state of a module, besides parameters and buffers, that hooks change: what is frozen, modes, attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lfl.client.attributes import attributes_of, comparable

_LARGEST = 2**22  # numbers in an attribute's tensors that a checkpoint takes


class ModuleState:
    """The flags and attributes of a module, for checkpoints.

    A hook may freeze a part in round 3, or set ``self.noise``. A run that goes on from round 5 finds what it has set.

    Args:
        module: the module as it is at the start of a run, before a checkpoint is loaded.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._first = {name: comparable(value) for name, value in attributes_of(module)}
        self._warned: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """Training modes, which parameters are trained, and the attributes that have changed since the start."""
        attributes = {}
        for name, value in attributes_of(self._module):
            if name in self._first and self._first[name] == comparable(value):
                continue
            if _size(value) <= _LARGEST:
                attributes[name] = _detached(value)
            elif name not in self._warned:
                self._warned.add(name)
                rank_zero_warn(
                    f"Checkpoints do not hold the attribute {name!r} of {type(self._module).__name__}, which has "
                    "changed: a resumed run starts without it. Numbers, strings, tensors, lists and dicts are held."
                )
        return {
            "training": {name: part.training for name, part in self._module.named_modules()},
            "requires_grad": {name: p.requires_grad for name, p in self._module.named_parameters()},
            "attributes": attributes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        parts = dict(self._module.named_modules())
        for name, mode in state["training"].items():
            if name in parts:
                parts[name].training = mode
        for name, parameter in self._module.named_parameters():
            parameter.requires_grad_(state["requires_grad"].get(name, parameter.requires_grad))
        for name, value in state["attributes"].items():
            owner, _, attribute = name.rpartition(".")
            if owner in parts:
                setattr(parts[owner], attribute, value)


def _size(value: Any) -> float:
    """Number of entries of what a checkpoint can hold; infinite for what it cannot."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        return value.numel()
    if isinstance(value, np.generic | np.ndarray):
        return value.size if value.dtype != object else float("inf")
    if value is None or type(value) in (bool, int, float, str):
        return 1
    if type(value) in (list, tuple):
        return 1 + sum(_size(entry) for entry in value)
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        return 1 + sum(_size(entry) for entry in value.values())
    return float("inf")


def _detached(value: Any) -> Any:
    """A copy that later changes do not reach, without autograd's graph."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list | tuple):
        return type(value)(_detached(entry) for entry in value)
    return {key: _detached(entry) for key, entry in value.items()} if isinstance(value, dict) else value
