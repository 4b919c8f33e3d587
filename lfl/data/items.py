"""Reading items of a data set so that whatever it draws has an address.

A data set may draw in its ``__getitem__`` (augmentation, crops, noise), from global generators or from its own. All
these are seeded for each item, by the key of the example in a training batch or by its position elsewhere. So an item
does not depend on which process reads it, nor on what was read before, and the process's own generators stay as they
were.
"""

import functools
import io
import pickle
import types
from collections.abc import Iterator, Mapping, Sequence, Sized
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset
from typing_extensions import override

from lfl.data.columns import DataError, as_column, as_labels, encoded
from lfl.data.examples import USUAL, ItemFormat, KeptItems
from lfl.data.nests import (
    Path,
    as_batch,
    is_numeric,
    joined,
    leaves_of,
    part_of,
    path_to,
    said,
    stacked,
    with_part,
)
from lfl.generators import GENERATORS, HostGenerators

_MANY = 5000  # objects among which a data set's generators are looked for, nearest first
_LONGEST = 1000  # a longer list is data
_TABLES = ("datasets.", "pyarrow.", "pandas.", "tokenizers.", "transformers.")  # whose many objects draw nothing
_VALUES = (Tensor, np.ndarray, np.generic, str, bytes, int, float)  # which hold nothing else
# Whose functions are not looked into. Objects of these libraries are: a transform may hold a generator.
_LIBRARIES = ("torch.", "torchvision.", "lightning.", "numpy.", "pandas.", "builtins.", "typing.", "abc.", "random.")

Place = tuple[int, int | None]
"""Position of an item, and the key of its draws; without a key, the position is the address."""


class Request(NamedTuple):
    """Asks for a batch.

    Attributes:
        places: of its items.
        rows: number of clients, with equally many items each.
        number: of the data set, where several are read.
    """

    places: list[Place]
    rows: int = 1
    number: int = 0


class ItemReader(Dataset[Any]):
    """Reads items of a map-style data set, alone or as batches; workers do so too.

    Args:
        dataset: its items are nests.
        name: what the data set is called in errors.
        seed: part of the address of draws without a key.
        classes: names of classes, by label, where targets are names.
        has_labels: whether targets are class labels, one for each example.
        format: what is what in an item.

    Raises:
        TypeError: the data set has no length.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        name: str = "The data set",
        seed: int = 0,
        classes: tuple[str, ...] | None = None,
        has_labels: bool = False,
        format: ItemFormat = USUAL,
    ) -> None:
        if not isinstance(dataset, Sized):
            raise TypeError(f"{name} is a {type(dataset).__name__} without a length: it must be a map-style data set.")
        self.dataset = dataset
        self.name = name
        self.seed = seed
        self.classes = classes
        self.has_labels = has_labels
        self.format = format
        self._is_kept = isinstance(dataset, KeptItems)  # which draw nothing
        self._collate_draws = False  # as far as has been seen
        self._generators: HostGenerators | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @override
    def __getitem__(self, position: int) -> Any:
        return self.items([(position, None)])[0]

    def batch(self, places: list[Place], rows: int = 1) -> Any:
        """The items at ``places`` as a nest of tensors (n, ...) and riders.

        Args:
            places: of n items.
            rows: number of clients, with equally many items each; of use to a ``collate_fn`` that draws.
        """
        if not places:  # an empty batch has the shape of the others
            return tree_map(lambda part: part[:0], self.batch([(0, None)]))
        items = self.items(places)
        if self.format.collate_fn is not None:
            return self._collated([self._with_label(item) for item in items], places, rows)
        batch = stacked(items, lambda path, values: differing(values, [p for p, _ in places], self.name, path))
        if self.target is not None:
            targets = encoded(
                as_column(part_of(batch, self.target), f"targets of {self.name}"), self.classes, self.name
            )
            batch = with_part(batch, self.target, as_labels(targets) if self.has_labels else targets)
        return tuple(batch) if type(batch) is list else batch

    def items(self, places: Sequence[Place]) -> list[Any]:
        """The items at ``places`` as they are."""
        if self._is_kept:
            return [self.dataset[position] for position, _ in places]
        with self.generators.kept():
            return [self._read(place) for place in places]

    @cached_property
    def target(self) -> Path | None:
        """The path to the target of an item; None if it has none.

        Raises:
            DataError: the item has no such part.
        """
        return self._place("target", self.format.target, 1)

    @cached_property
    def input(self) -> Path | None:
        """The path to the input of an item, which transforms are for; None if nobody said so.

        Raises:
            DataError: the item has no such part.
        """
        return self._place("input", self.format.input, 0)

    def _place(self, name: str, wanted: str | int | None, usual: int) -> Path | None:
        item = self[0]
        if wanted is None:
            return (usual,) if isinstance(item, tuple | list) and len(item) > usual else None
        found = path_to(item, wanted)
        if found is None:
            parts = ", ".join(".".join(map(str, path)) for path, _ in leaves_of(item))
            raise DataError(
                f"`{name}={wanted!r}` is no part of the items of {self.name}, which have: {parts or 'one'}."
            )
        return found

    @property
    def generators(self) -> HostGenerators:
        """All generators that the data set may draw from; the first call reads an item."""
        if self._generators is None:
            # Data sets may make their generators when they are first asked for an item.
            early = HostGenerators(_generators_in(self._code))
            with early.kept():
                early.seed("first item")
                self.dataset[0]
            self._generators = HostGenerators(_generators_in(self._code))
        return self._generators

    @property
    def _code(self) -> tuple[Any, ...]:
        """The objects that may draw, or change: the data set and ``collate_fn``."""
        return self.dataset, self.format.collate_fn

    def state(self) -> list[Any]:
        """A value equal to an earlier one if the numbers, names and flags that a data set holds are what they were.

        Those of what it wraps, of its transforms and of its functions' globals count too. Tensors count as changed when
        they are others, or have been written into; what is in arrays and long lists is not looked at.
        """
        return [value for value in map(_plain, _held_by(self._code)) if value is not None]

    def warn_of_draws_kept(self) -> None:
        """Warns if items are drawn, where each is read once and kept in memory."""
        with self.generators.kept():
            self.generators.seed("item")
            before = self.generators.state()
            self.dataset[0]
            moved = self.generators.moved_since(before)
        if moved:
            rank_zero_warn(
                f"Items of {self.name} draw from {moved[0]}, but are kept in memory: each is drawn once for the whole "
                "run. `in_memory=False` draws anew in every epoch; or give what draws as `train_transforms`."
            )

    def warn_of_other_draws(self) -> None:
        """Warns if the first item differs when it is read again: then it draws from where no seed reaches."""
        first, again = self[0], self[0]
        if not _is_equal(first, again):
            rank_zero_warn(
                f"Two readings of item 0 of {self.name} differ: `__getitem__` draws from a generator that lfl cannot "
                "find, so runs will not repeat. Draw from torch's, numpy's or Python's global generator, or keep the "
                "generator as an attribute of the data set."
            )

    def __getstate__(self) -> dict[str, Any]:
        # The global generators of a worker are its own, and so are those of its copy of the data set.
        return {**self.__dict__, "_generators": None}

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        holds_torchs = any(isinstance(generator, torch.Generator) for generator in self.generators.own.values())
        if get_spawning_popen() is None or not holds_torchs:
            return super().__reduce_ex__(protocol)
        sent = io.BytesIO()
        _Sender(sent, protocol).dump((type(self), self.__getstate__()))
        return _received, (sent.getvalue(),)

    def _read(self, place: Place) -> Any:
        position, key = place
        address = ("position", self.seed, position) if key is None else ("key", key)
        self.generators.seed("item", *address)
        try:
            return self.dataset[position]
        except Exception as error:
            error.add_note(f"This is item {position} of {self.name}, which has {len(self)}.")
            raise

    def _with_label(self, item: Any) -> Any:
        """An item in which the name of its class is a number, for a ``collate_fn`` that stacks."""
        if (
            self.classes is None
            or self.target is None
            or not isinstance(name := part_of(item, self.target), str | bytes)
        ):
            return item
        number = encoded(as_column([name], f"targets of {self.name}"), self.classes, self.name)
        return with_part(item, self.target, int(number))

    def _collated(self, items: list[Any], places: list[Place], rows: int) -> Any:
        """The batch that ``collate_fn`` makes: of all clients at once, so that it pads them alike.

        Unless it draws: then of one client after another, whose draws depend on its own examples.
        """
        if not (self._collate_draws and rows > 1):
            batch, draws = self._collate(items, places)
            self._collate_draws |= draws
            if not draws or rows == 1:
                return batch
        size = len(items) // rows
        spans = [slice(start, start + size) for start in range(0, len(items), size)]
        parts = [self._collate(items[span], places[span])[0] for span in spans]
        try:
            return tree_map(lambda *leaves: joined(leaves), *parts)
        except (RuntimeError, ValueError) as error:
            raise DataError(
                f"`collate_fn` of {self.name} draws random numbers, and is therefore called for one client at a time; "
                "its batches for clients that are trained together differ in shape: pad them to one length."
            ) from error

    def _collate(self, items: list[Any], places: list[Place]) -> tuple[Any, bool]:
        """The batch that ``collate_fn`` makes of items, and whether it drew."""
        assert self.format.collate_fn is not None
        position, key = places[0]
        with self.generators.kept():
            self.generators.seed("collate", *(("position", self.seed, position) if key is None else ("key", key)))
            before = self.generators.state()
            made = self.format.collate_fn(items)
            draws = bool(self.generators.moved_since(before))
        try:
            batch = as_batch(made, len(items))
        except ValueError as error:
            raise DataError(
                f"`collate_fn` made {error} of {len(items)} items of {self.name}: every part must be a tensor with one "
                "row an item, or a list of strings."
            ) from error
        return tuple(batch) if type(batch) is list else batch, draws


class _Sender(ForkingPickler):
    """Pickles torch's generators by value: their states in shared memory do not reach a process that is spawned."""

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, torch.Generator):
            return NotImplemented
        return _generator, (str(thing.device), thing.get_state().numpy().tobytes())


def _generator(device: str, state: bytes) -> torch.Generator:
    generator = torch.Generator(device)
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return generator


def _received(sent: bytes) -> ItemReader:
    kind, state = pickle.loads(sent)
    reader: ItemReader = kind.__new__(kind)
    reader.__dict__.update(state)
    return reader


def differing(values: Sequence[Any], positions: Sequence[int], name: str, path: Path = ()) -> DataError:
    """The error that names the first item whose part at ``path`` does not fit that of the first one."""
    shapes = [_shape_of(value) for value in values]
    other = next((place for place, shape in enumerate(shapes) if shape != shapes[0]), 0)
    if not (isinstance(shapes[0], list) and isinstance(shapes[other], list)):
        kinds = [_kind_of(values[place]) for place in (0, other)]
        return DataError(
            f"Item {positions[other]} of {name} has {said(path)} that is a {kinds[1]}, item {positions[0]} one that is "
            f"a {kinds[0]}: items must be nests of the same structure, of tensors, arrays, numbers and strings."
        )
    return DataError(
        f"Item {positions[other]} of {name} has {said(path)} of shape {shapes[other]}, item {positions[0]} of "
        f"{shapes[0]}: the examples of a batch must have equal shapes. Crop, resize or pad them in the data set, or "
        "give its source a `collate_fn`, as PadCollate."
    )


def _shape_of(value: Any) -> Any:
    """The shape of what can be stacked; of the rest, what it is."""
    try:
        return list(np.shape(value)) if is_numeric(value) else _kind_of(value)
    except ValueError:  # a list of lists of different lengths
        return _kind_of(value)


def _kind_of(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, Mapping):
        return f"{name} {list(value)}"
    return f"{name} of {len(value)}" if isinstance(value, tuple | list) else name


def _plain(held: tuple[str, Any]) -> Any:
    name, value = held
    if name.startswith("__"):  # Python's own, of classes
        return None
    if isinstance(value, Tensor):
        return name, id(value), 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return name, id(value), value.shape
    if isinstance(value, list):
        return name, id(value), len(value)
    return (name, value) if value is None or isinstance(value, str | bytes | int | float | np.generic) else None


def _generators_in(root: object) -> types.SimpleNamespace:
    """The generators of a data set, of what it is made of, and of the functions it calls; by name."""
    found: dict[str, Any] = {}
    for name, thing in _held_by(root):
        if isinstance(thing, GENERATORS):
            found[f"{name}_{len(found)}" if name in found else name] = thing
    return types.SimpleNamespace(**found)


def _held_by(root: object) -> Iterator[tuple[str, Any]]:
    """Everything that a data set holds, with names where it has some, nearest first.

    Wrapped data sets, transforms, closures and module-level names are searched.
    """
    seen, queue = {id(root)}, [("dataset", root)]
    for name, thing in queue:  # which grows
        if isinstance(thing, GENERATORS):
            continue
        for inner_name, inner in _parts(thing):
            if isinstance(inner, types.ModuleType | type) or id(inner) in seen:
                continue
            yield inner_name or name, inner
            if inner is None or isinstance(inner, _VALUES) or len(queue) >= _MANY:
                continue
            seen.add(id(inner))
            queue.append((inner_name or name, inner))


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """The values that an object holds, with names where it has some."""
    if isinstance(thing, list | tuple | dict | set):
        if len(thing) <= _LONGEST:
            yield from (("", value) for value in (thing.values() if isinstance(thing, dict) else thing))
    elif isinstance(thing, types.FunctionType):
        if f"{thing.__module__}.".startswith(_LIBRARIES):
            return
        names = (name for name in thing.__code__.co_names if name in thing.__globals__)
        yield from ((name, thing.__globals__[name]) for name in names)
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # nothing has been assigned to that variable yet
                continue
        yield from (("", value) for value in (thing.__defaults__ or (), thing.__kwdefaults__ or {}))
    elif isinstance(thing, types.MethodType):
        yield from (("", thing.__self__), ("", thing.__func__))
    elif isinstance(thing, functools.partial):
        yield from (("", value) for value in (thing.func, thing.args, thing.keywords))
    elif f"{type(thing).__module__}.".startswith(_TABLES):
        yield from getattr(thing, "_format_kwargs", {}).items()  # a transform that a user has set
    else:
        yield from list(getattr(thing, "__dict__", {}).items())
        for kind in type(thing).__mro__:
            if not f"{kind.__module__}.".startswith(_LIBRARIES):
                yield from list(vars(kind).items())


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two items are equal; NaN equals itself."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return all(map(_is_equal, one, other))
    if isinstance(one, Tensor | np.ndarray):
        return bool(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind == "f"))
    return bool(one == other or one != one)
