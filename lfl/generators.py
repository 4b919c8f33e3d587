"""The generators that user code draws from without being asked: global ones, and those that an object holds.

What such code draws has no address of its own. It gets one by seeding all of these generators before the code runs, and
by putting them back afterwards, since others draw from them too.
"""

import random
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

from lfl.randomness import derive_seed

_Own: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_LEVELS = 3  # of lists, tuples and dictionaries in which an attribute's generators are looked for
_LOOKED_AT = (*GENERATORS, list, tuple, dict)
_TORCHS = frozenset(vars(torch.nn.Module()))  # a module's parameters, submodules and hooks
_LIBRARIES = {"builtins", "abc", "typing", "torch", "torchvision", "torchmetrics", "lightning", "numpy"}
OPAQUE = ("lfl", "lightning", "pytorch_lightning", "lightning_fabric", "wandb", "tensorboard", "logging")
"""Libraries whose objects are not looked into: a trainer or a logger holds much that no step reads."""
_NOT_THE_USERS = _LIBRARIES.union(OPAQUE)
_LONGEST = 1000  # a longer list is data, not a list of generators
_LOW = 0xFFFFFFFF


class HostGenerators:
    """The global generators of torch (CUDA's too, once it is in use), numpy and Python, and those that objects hold.

    Args:
        owners: objects among whose attributes, and those of their classes, generators are looked for (also inside
            lists, tuples, dictionaries and objects of the user's), and among what their methods read of their files.

    Example:
        >>> generators = HostGenerators()
        >>> with generators.kept():
        ...     generators.seed("item", 7)
        ...     first = torch.rand(1), np.random.rand(), random.random()
        >>> with generators.kept():
        ...     generators.seed("item", 7)
        ...     print(first == (torch.rand(1), np.random.rand(), random.random()))
        True
    """

    def __init__(self, *owners: object) -> None:
        self.own: dict[str, _Own] = {}
        for owner in owners:
            self._find_in(owner, _LEVELS)

    def seed(self, *address: int | str) -> None:
        """Seeds every generator by the address, each with a seed of its own."""
        seed = derive_seed(*address)
        # All three are Mersenne twisters, torch's and numpy's seeded by 32 bits in the same way: with the same bits
        # they would draw the same numbers. `torch.manual_seed` would also make CUDA's queue a call.
        torch.default_generator.manual_seed(seed & _LOW)
        np.random.seed(seed >> 31)
        random.seed(seed)
        for number, device in enumerate(_cuda()):
            device.manual_seed(derive_seed(seed, "cuda", number))
        for number, generator in enumerate(self.own.values()):
            _reseed(generator, derive_seed(seed, number))

    def state(self) -> dict[str, Any]:
        """The states of all generators, by what the generators are called in plain English."""
        return {
            "torch's global generator": torch.default_generator.get_state(),
            "numpy's global generator": np.random.get_state(legacy=False),
            "Python's `random`": random.getstate(),
            **{f"torch's generator of cuda:{n}": device.get_state() for n, device in enumerate(_cuda())},
            **{f"its generator `{name}`": _state_of(generator) for name, generator in self.own.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Puts back the states that ``state`` returned; generators that were not there then stay as they are."""
        torch.default_generator.set_state(state["torch's global generator"])
        np.random.set_state(state["numpy's global generator"])
        random.setstate(state["Python's `random`"])
        for number, device in enumerate(_cuda()):
            if (saved := state.get(f"torch's generator of cuda:{number}")) is not None:
                device.set_state(saved)
        for name, generator in self.own.items():
            if (saved := state.get(f"its generator `{name}`")) is not None:
                _put_back(generator, saved)

    def moved_since(self, state: dict[str, Any]) -> list[str]:
        """The names of those generators whose state is no longer that of ``state``."""
        return [name for name, value in self.state().items() if name in state and not _equal(value, state[name])]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """On exit, by an error too, all generators are as they were on entry."""
        state = self.state()
        try:
            yield
        finally:
            self.restore(state)

    def _find_in(self, owner: object, levels: int, prefix: str = "") -> None:
        # What the object has itself comes first: that is what `owner.name` means.
        for holder in (owner, *_own_classes(type(owner))):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if isinstance(value, types.FunctionType):
                    for read, generator in _read_by(value.__code__, value.__globals__):
                        self._find(read, generator, 0)
                elif name not in _TORCHS and (isinstance(value, _LOOKED_AT) or _is_users(value)):
                    self._find(f"{prefix}{name}", value, levels)

    def _find(self, name: str, value: Any, levels: int) -> None:
        if isinstance(value, GENERATORS):
            # The global ones may be attributes too. A generator of the operating system has no state.
            is_known = any(value is known for known in (*self.own.values(), *_global_ones()))
            if not is_known and not isinstance(value, random.SystemRandom):
                self.own[name if name not in self.own else f"{name} ({len(self.own)})"] = value
        elif levels and isinstance(value, list | tuple | dict) and len(value) <= _LONGEST:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in list(items):
                self._find(f"{name}[{key!r}]", item, levels - 1)
        elif levels and _is_users(value):
            self._find_in(value, levels - 1, f"{name}.")


def _own_classes(kind: type) -> tuple[type, ...]:
    """The classes of an object that are not of a library."""
    return tuple(k for k in kind.__mro__ if k.__module__.split(".")[0] not in _LIBRARIES)


def _is_users(value: object) -> bool:
    """Whether a value is an object of a class of the user's, and no module, whose parts are looked at by themselves."""
    kind = type(value)
    is_code = isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType | torch.nn.Module)
    return not is_code and kind.__module__.split(".")[0] not in _NOT_THE_USERS and hasattr(value, "__dict__")


def _read_by(code: types.CodeType, names: dict[str, Any]) -> Iterator[tuple[str, _Own]]:
    """Generators that a function reads from its file, also in functions that are written in it; by name."""
    yield from ((name, names[name]) for name in code.co_names if isinstance(names.get(name), GENERATORS))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _read_by(inner, names)


def _cuda() -> tuple[torch.Generator, ...]:
    # False in a process that was forked after CUDA had been used: it has no CUDA.
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()


def _global_ones() -> tuple[Any, ...]:
    # Python's and numpy's functions are methods of their global generators.
    return torch.default_generator, random.random.__self__, np.random.rand.__self__, *_cuda()  # type: ignore[attr-defined]


def _reseed(generator: _Own, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        try:
            generator.seed(seed & _LOW)
        except TypeError:  # its bits are not those of a Mersenne twister
            kind = getattr(np.random, str(generator.get_state(legacy=False)["bit_generator"]))
            generator.set_state({**kind(seed).state, "has_gauss": 0, "gauss": 0.0})


def _state_of(generator: _Own) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)  # a dictionary, which all kinds of bits have


def _put_back(generator: _Own, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _equal(one: Any, other: Any) -> bool:
    """Whether two states are equal: arrays and tensors, in dictionaries or alone, or numbers and tuples of them."""
    if isinstance(one, dict):
        return all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)
