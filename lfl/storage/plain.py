"""Values of checkpoints: what ``torch.load(weights_only=True)`` reads, and a form in it for others of numpy and Python.

A checkpoint from somebody else must not be able to run code, so that torch reads few types. Others that people keep
in the states of schedulers and callbacks are written as dictionaries of these, and come back as what they were: numpy's
scalars and arrays, Counters, deques, frozen sets, dictionaries with a default, ranges and named tuples.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

_KIND = "lfl: kind"  # the key that tells a written form from a user's own dictionary
_EXACT = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_TENSORS = (
    (Tensor, torch.nn.Parameter, torch.nn.Buffer) if hasattr(torch.nn, "Buffer") else (Tensor, torch.nn.Parameter)
)
_FACTORIES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple, Counter, deque)}
_ADVICE = {
    "numpy.random": "keep `bit_generator.state` of it",
    "torch._C.Generator": "keep `get_state()` of it",
    "random.Random": "keep `getstate()` of it",
    "function": "leave it out of the state, and make it anew",
}


def to_plain(value: Any, where: str) -> Any:
    """Return ``value`` in types that ``torch.load(weights_only=True)`` reads; ``from_plain`` is the inverse.

    Args:
        value: a nest of values.
        where: what it is, for messages.

    Raises:
        TypeError: some part has a type that a checkpoint cannot hold; names its place and the type.
    """
    try:
        return _to_plain(value, where)
    except RecursionError:
        raise TypeError(f"{where} contains itself, which a checkpoint cannot hold.") from None


def from_plain(value: Any) -> Any:
    """Return what ``to_plain`` was given."""
    if type(value) in (list, tuple):
        return type(value)(from_plain(item) for item in value)
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return type(value)((key, from_plain(item)) for key, item in value.items())
    return _READ[value[_KIND]](value)


def check_savable(value: Any, where: str) -> None:
    """Check that a checkpoint can hold ``value``, by writing and reading it in memory, its tensors without numbers.

    Raises:
        TypeError: it cannot; names the place and the type.
    """
    memory = io.BytesIO()
    try:
        torch.save(_without_numbers(to_plain(value, where)), memory)
        memory.seek(0)
        torch.load(memory, map_location="cpu", weights_only=True)
    except TypeError:
        raise
    except Exception as error:
        raise TypeError(f"{where} cannot be loaded from a checkpoint ({str(error).partition(chr(10))[0]}).") from error


def is_loadable(value: Any) -> bool:
    """Whether ``torch.load(weights_only=True)`` reads ``value`` as it is."""
    memory = io.BytesIO()
    try:
        torch.save(value, memory)
        memory.seek(0)
        torch.load(memory, map_location="cpu", weights_only=True)
    except Exception:  # of pickle and of torch, of many types
        return False
    return True


def _to_plain(value: Any, where: str) -> Any:
    kind = type(value)
    if kind in _EXACT or kind in _TENSORS:
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _array(value, where)
    if kind in (list, tuple):
        return kind(_items(value, where))
    if kind is set:
        return {_key(item, where) for item in value}
    if kind in (dict, OrderedDict):
        return kind(_pairs(value, where))
    if kind is Counter:
        return {_KIND: "Counter", "items": _pairs(value, where)}
    if kind is defaultdict and (value.default_factory is None or value.default_factory in _FACTORIES.values()):
        factory = None if value.default_factory is None else value.default_factory.__name__
        return {_KIND: "defaultdict", "items": _pairs(value, where), "factory": factory}
    if kind is deque:
        return {_KIND: "deque", "items": list(_items(value, where)), "maxlen": value.maxlen}
    if kind is frozenset:
        return {_KIND: "frozenset", "items": [_key(item, where) for item in value]}
    if kind is range:
        return {_KIND: "range", "items": [value.start, value.stop, value.step]}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = [_to_plain(item, f"{where}.{name}") for name, item in zip(value._fields, value, strict=True)]
        return {_KIND: "namedtuple", "items": items, "name": kind.__name__, "fields": list(value._fields)}
    # The number types of jsonargparse (`PositiveInt`) and their like are equal to what they are made of.
    for base in (int, float, str):
        if isinstance(value, base) and not isinstance(value, Enum):
            return base(value)
    raise TypeError(_refusal(value, where))


def _refusal(value: Any, where: str) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    instead = next((advice for start, advice in _ADVICE.items() if start in kind), "")
    return (
        f"{where} is a {kind}, which a checkpoint cannot hold: "
        f"{instead or 'convert it to tensors, numbers, strings, lists or dictionaries'}."
    )


def _items(values: Any, where: str) -> Iterator[Any]:
    return (_to_plain(item, f"{where}[{position}]") for position, item in enumerate(values))


def _pairs(values: Any, where: str) -> list[tuple[Any, Any]]:
    return [(_key(key, where), _to_plain(item, f"{where}[{key!r}]")) for key, item in values.items()]


def _key(key: Any, where: str) -> Any:
    """A key of a dictionary, or an item of a set: must stay hashable. A numpy scalar is equal to Python's number."""
    plain = _to_plain(key.item() if isinstance(key, np.generic) else key, f"a key of {where}")
    if isinstance(plain, dict | list):
        raise TypeError(_refusal(key, f"a key of {where}"))
    return plain


def _array(value: np.generic | np.ndarray, where: str) -> dict[str, Any]:
    dtype = value.dtype
    if dtype.hasobject or dtype.fields is not None:
        raise TypeError(f"{where} is a numpy array of {dtype}, which a checkpoint cannot hold: convert it to lists.")
    data = torch.from_numpy(np.frombuffer(np.ascontiguousarray(value).tobytes(), dtype=np.uint8).copy())
    kind = "array" if isinstance(value, np.ndarray) else "scalar"
    return {_KIND: kind, "dtype": dtype.str, "shape": list(value.shape), "data": data}


def _read_array(value: dict[str, Any]) -> np.ndarray:
    data: Tensor = value["data"]
    return np.frombuffer(data.numpy().tobytes(), dtype=np.dtype(value["dtype"])).reshape(value["shape"]).copy()


def _read_items(value: dict[str, Any]) -> list[Any]:
    items: list[Any] = from_plain(value["items"])
    return items


def _read_defaultdict(value: dict[str, Any]) -> defaultdict[Any, Any]:
    factory: Callable[[], Any] | None = None if value["factory"] is None else _FACTORIES[value["factory"]]
    return defaultdict(factory, _read_items(value))


_READ: dict[str, Callable[[dict[str, Any]], Any]] = {
    "array": _read_array,
    "scalar": lambda value: _read_array(value)[()],
    "Counter": lambda value: Counter(dict(_read_items(value))),
    "defaultdict": _read_defaultdict,
    "deque": lambda value: deque(_read_items(value), value["maxlen"]),
    "frozenset": lambda value: frozenset(_read_items(value)),
    "range": lambda value: range(*value["items"]),
    # A class of the same name and fields: importing the original one would run code that the checkpoint names.
    "namedtuple": lambda value: namedtuple(value["name"], value["fields"])(*_read_items(value)),
}


def _without_numbers(value: Any) -> Any:
    """Replace tensors by empty ones of their type, so that a trial costs next to nothing."""
    if isinstance(value, Tensor):
        return torch.empty(0)
    if type(value) in (list, tuple, set):
        return type(value)(_without_numbers(item) for item in value)
    if isinstance(value, dict):
        return {key: _without_numbers(item) for key, item in value.items()}
    return value
