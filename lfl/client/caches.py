"""Attributes that a module makes at its first step and never changes: a table of positions, a mask of its length.

They are nothing at first, so that a step changes the module; but only once, and to what any step would make.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils._pytree import tree_map

from lfl.client.attributes import attributes_of
from lfl.client.checkpoints import client_random
from lfl.client.model import ClientModel
from lfl.client.surroundings import Surroundings
from lfl.generators import HostGenerators


def caches_of(model: ClientModel, batches: Sequence[Any], keys: Sequence[Tensor]) -> dict[str, Tensor]:
    """Find the tensors that a step puts where nothing was, equal after any step, and left alone by the next one.

    Steps are taken on copies of the module: each on another batch, and at other parameters, so that what depends on
    either is found out; and a second one on half of the batch.

    Args:
        model: the model; it is left alone.
        batches: batches of single clients.
        keys: a key for the random draws of each.

    Returns:
        The tensors, by the names of the attributes; empty if a step raises an error.
    """
    found: dict[str, Tensor] | None = None
    for number, (batch, key) in enumerate(zip(batches, keys, strict=True)):
        twin = model.copy()
        for parameter in twin.parameters:
            parameter.data = parameter.data * (1 + 0.1 * number) + 0.01 * number
        try:
            made = _made_once(twin, batch, key)
        except Exception:  # whatever it raises: such a module is trained in the plain way, which will say so
            return {}
        found = made if found is None else {n: v for n, v in found.items() if n in made and _equal(v, made[n])}
    return found or {}


def fill(module: LightningModule, caches: dict[str, Tensor]) -> None:
    """Give a module copies of these tensors, as its first step would."""
    for name, value in caches.items():
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, copy.deepcopy(value))


def _made_once(twin: ClientModel, batch: Any, key: Tensor) -> dict[str, Tensor]:
    """The tensors that a first step puts where nothing was, and that a second one does not touch."""
    module = twin.module
    before = dict(attributes_of(module))
    with Surroundings(module).kept(), HostGenerators(*module.modules()).kept(), twin.recording(), client_random(key):
        twin.recorder.start()
        twin.run_step(batch, 0)
        made = {
            name: value
            for name, value in attributes_of(module)
            if isinstance(value, Tensor) and not value.requires_grad and before.get(name) is None
        }
        versions = {name: value._version for name, value in made.items()}
        twin.run_step(tree_map(lambda x: x[: -(-len(x) // 2)] if isinstance(x, Tensor) else x, batch), 1)
        after = dict(attributes_of(module))
    return {n: v for n, v in made.items() if after.get(n) is v and v._version == versions[n]}


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
