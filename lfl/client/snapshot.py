"""A module's attributes at one moment: cheap enough to be taken before each cohort, and to be looked at after it."""

from __future__ import annotations

import copy
import operator
from collections import deque
from typing import Any

from torch import Tensor, nn

from lfl.client.attributes import is_users

_PLAIN = (str, bytes, int, float, complex, type(None))
_LONGEST = 100  # entries of a container that is looked into


class Snapshot:
    """The attributes of a module and of its submodules, and whether its frozen parameters have been written into.

    Lists and dictionaries are looked into one level deep, and tensors by their version: what lies deeper, and what is
    written past torch, is not seen.

    Args:
        module: the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = [
            (f"{prefix}." if prefix else "", part, dict(vars(part))) for prefix, part in module.named_modules()
        ]
        self._inner = [
            (f"{prefix}{name}", value, _mark(value), copy.copy(value) if _is_container(value) else None)
            for prefix, part, held in self._parts
            if not type(part).__module__.startswith("torch.")  # whose own steps write into none of theirs
            for name, value in held.items()
            if (isinstance(value, Tensor) or _is_container(value)) and is_users(name)
        ]
        self._frozen = [
            (f"{prefix}{name}", parameter, parameter._version)
            for prefix, part, _ in self._parts
            for name, parameter in part._parameters.items()
            if parameter is not None and not parameter.requires_grad
        ]

    def changed(self) -> list[str]:
        """The names of attributes and frozen parameters that are not what they were."""
        found = [name for name, parameter, version in self._frozen if parameter._version != version]
        for prefix, part, held in self._parts:
            now = vars(part)
            if now.keys() == held.keys() and all(map(operator.is_, now.values(), held.values())):
                continue
            names = filter(is_users, {**now, **held})
            found += [f"{prefix}{n}" for n in names if n not in now or n not in held or not _is_same(now[n], held[n])]
        return found + [name for name, value, mark, _ in self._inner if _mark(value) != mark and name not in found]

    def restore(self) -> list[str]:
        """Put the attributes back; returns the names of those that cannot be, as they were written into."""
        for _, part, held in self._parts:
            for name in [name for name in vars(part) if is_users(name) and name not in held]:
                del vars(part)[name]
            vars(part).update({name: value for name, value in held.items() if is_users(name)})
        for _, value, _, content in self._inner:
            if content is not None:
                value.clear()
                value.update(content) if isinstance(value, dict | set) else value.extend(content)
        return self.changed()


def _is_same(now: Any, before: Any) -> bool:
    return now is before or (isinstance(now, _PLAIN) and repr(now) == repr(before))  # NaN equals itself


def _is_container(value: Any) -> bool:
    return type(value) in (list, dict, set, deque) and len(value) <= _LONGEST


def _mark(value: Any) -> Any:
    """A value equal to an earlier one if nothing has changed, as far as is looked."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return id(value), 0 if value.is_inference() else value._version
    if _is_container(value) or (isinstance(value, tuple) and len(value) <= _LONGEST):
        entries = [*value, *value.values()] if isinstance(value, dict) else value
        return id(value) if _is_container(value) else type(value), [_entry(entry) for entry in entries]
    return id(value)


def _entry(value: Any) -> Any:
    return id(value) if isinstance(value, tuple) or _is_container(value) else _mark(value)
