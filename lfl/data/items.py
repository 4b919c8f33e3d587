"""Reading items of a data set so that whatever it draws has an address.

A data set may draw in its ``__getitem__`` (augmentation, crops, noise), from global generators or from its own. All
these are seeded for each item, by the key of the example in a training batch or by its position elsewhere. So an item
does not depend on which process reads it, nor on what was read before, and the process's own generators stay as they
were.
"""

import functools
import types
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import numpy as np
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from typing_extensions import override

from lfl.data.columns import DataError, as_column, as_labels, encoded
from lfl.generators import GENERATORS, HostGenerators

_MANY = 5000  # objects among which a data set's generators are looked for, nearest first
_LONGEST = 1000  # a longer list is data
# Whose functions are not looked into. Objects of these libraries are: a transform may hold a generator.
_LIBRARIES = ("torch.", "torchvision.", "lightning.", "numpy.", "pandas.", "builtins.", "typing.", "abc.", "random.")

Place = tuple[int, int | None]
"""Position of an item, and the key of its draws; without a key, the position is the address."""


class ItemReader(Dataset[Any]):
    """Reads items of a map-style data set, alone or as batches; DataLoader's workers do so too.

    Args:
        dataset: its items are (input, target, ...).
        name: what the data set is called in errors.
        seed: part of the address of draws without a key.
        classes: names of classes, by label, where targets are names.
        has_labels: whether targets are class labels, one for each example.

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
    ) -> None:
        if not isinstance(dataset, Sized):
            raise TypeError(f"{name} is a {type(dataset).__name__} without a length: it must be a map-style data set.")
        self.dataset = dataset
        self.name = name
        self.seed = seed
        self.classes = classes
        self.has_labels = has_labels
        self._generators: HostGenerators | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @override
    def __getitem__(self, position: int) -> Any:
        return self.items([(position, None)])[0]

    def __getitems__(self, places: list[Place]) -> list[Tensor] | DataError:
        """The batch of the items at ``places``, or what is wrong with it, for DataLoaders."""
        try:
            return self.batch(places)
        except DataError as error:
            return error  # raised in a worker, it would arrive as the text of a traceback

    def batch(self, places: list[Place]) -> list[Tensor]:
        """The items at ``places``, each of their parts as one tensor (n, ...)."""
        if not places:  # an empty batch has the shape of the others
            return [part[:0] for part in self.batch([(0, None)])]
        items = self.items(places)
        inputs, targets, *others = [self._stacked(part, places) for part in zip(*items, strict=False)]
        targets = encoded(as_column(targets, f"targets of {self.name}"), self.classes, self.name)
        return [inputs, as_labels(targets) if self.has_labels else targets, *others]

    def items(self, places: Sequence[Place]) -> list[Any]:
        """The items at ``places`` as they are."""
        with self.generators.kept():
            return [self._read(place) for place in places]

    @property
    def generators(self) -> HostGenerators:
        """All generators that the data set may draw from; the first call reads an item."""
        if self._generators is None:
            # Data sets may make their generators when they are first asked for an item.
            early = HostGenerators(_generators_in(self.dataset))
            with early.kept():
                early.seed("first item")
                self.dataset[0]
            self._generators = HostGenerators(_generators_in(self.dataset))
        return self._generators

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

    def _read(self, place: Place) -> Any:
        position, key = place
        address = ("position", self.seed, position) if key is None else ("key", key)
        self.generators.seed("item", *address)
        try:
            return self.dataset[position]
        except Exception as error:
            error.add_note(f"This is item {position} of {self.name}, which has {len(self)}.")
            raise

    def _stacked(self, values: Sequence[Any], places: Sequence[Place]) -> Any:
        try:
            return default_collate(list(values))
        except RuntimeError as error:  # of `stack`, without saying where
            if len({np.shape(value) for value in values}) == 1:
                raise
            raise differing(values, [position for position, _ in places], self.name) from error


def differing(values: Sequence[Any], positions: Sequence[int], name: str) -> DataError:
    """The error that names the first item whose shape is not that of the first one."""
    shapes = [list(np.shape(value)) for value in values]
    other = next((place for place, shape in enumerate(shapes) if shape != shapes[0]), 0)
    return DataError(
        f"Item {positions[other]} of {name} has a part of shape {shapes[other]}, item {positions[0]} of {shapes[0]}: "
        "the examples of a batch must have equal shapes. Crop, resize or pad them in the data set."
    )


def _generators_in(root: object) -> types.SimpleNamespace:
    """The generators of a data set, of what it is made of, and of the functions it calls; by name.

    Wrapped data sets, transforms, closures and module-level names are searched, nearest first.
    """
    found: dict[str, Any] = {}
    seen, queue = {id(root)}, [("dataset", root)]
    for name, thing in queue:  # which grows
        if isinstance(thing, GENERATORS):
            found[f"{name}_{len(found)}" if name in found else name] = thing
            continue
        for inner_name, inner in _parts(thing):
            is_opaque = isinstance(inner, Tensor | np.ndarray | types.ModuleType | type | str | bytes | int | float)
            if inner is not None and not is_opaque and id(inner) not in seen and len(queue) < _MANY:
                seen.add(id(inner))
                queue.append((inner_name or name, inner))
    return types.SimpleNamespace(**found)


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, with names where it has some."""
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
    else:
        yield from list(getattr(thing, "__dict__", {}).items())
        for kind in type(thing).__mro__:
            if not f"{kind.__module__}.".startswith(_LIBRARIES):
                yield from list(vars(kind).items())


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two items are equal; NaN equals itself."""
    if isinstance(one, tuple | list):
        return all(map(_is_equal, one, other))
    if isinstance(one, Tensor | np.ndarray):
        return bool(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind == "f"))
    return bool(one == other or one != one)
