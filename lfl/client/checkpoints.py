"""Activation checkpoints: what the backward pass computes again draws what it drew the first time.

``torch.utils.checkpoint`` puts torch's own generators back before it computes a part of a module again. The draws of
``ClientRandom`` are not made by those, and the backward pass comes after its context has ended: the part is computed
again in a context of its own, which begins with the draw with which the part began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint as torchs
from torch import Tensor

from lfl.client.random_ops import ClientRandom

# Both are given the checkpointed function first, to compute it again. Which one is called depends on torch's version.
_GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")


@contextmanager
def client_random(key: Tensor) -> Iterator[ClientRandom]:
    """Compute torch's random operations from a key, also those in checkpoints; see ``ClientRandom``.

    Args:
        key: the client's key for a step, a 64-bit integer without dimensions.
    """
    module: Any = torchs
    own = {name: getattr(module, name) for name in (*_GENERATORS, "CheckpointFunction") if hasattr(module, name)}
    with ClientRandom(key) as random:
        for name in own.keys() & set(_GENERATORS):
            setattr(module, name, _replaying(own[name], random, is_first_again=True))
        # A reentrant one calls the function in the forward pass, too.
        reentrant = _replaying(own["CheckpointFunction"].apply, random, is_first_again=False)
        module.CheckpointFunction = SimpleNamespace(apply=reentrant)
        try:
            yield random
        finally:
            for name, value in own.items():
                setattr(module, name, value)


def _replaying(checkpoint: Callable[..., Any], random: ClientRandom, is_first_again: bool) -> Callable[..., Any]:
    """A checkpoint whose function, when it is computed again, draws what it drew before."""

    def replaying(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        start, dtype, calls = random.draws, torch.get_default_dtype(), 0

        def computed(*inputs: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1 and not is_first_again:
                return function(*inputs, **named)
            # Also the precision's own type of numbers, whose context has ended, too.
            with client_random(random.key) as again, _default_dtype(dtype):
                again.draws = start
                return function(*inputs, **named)

        return checkpoint(computed, *args, **options)

    return replaying


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
