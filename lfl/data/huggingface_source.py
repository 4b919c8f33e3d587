"""Data sets of Hugging Face's ``datasets``: folders on the disk, and names on the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jsonargparse.typing import NonNegativeInt, OpenUnitInterval
from torch.utils.data import Dataset
from typing_extensions import override

from lfl.arguments import check_number
from lfl.data.columns import DataError
from lfl.data.examined import examined
from lfl.data.examples import Data, Examples, ItemFormat, KeptItems
from lfl.data.sources import Source
from lfl.randomness import generator

_EXTRA = "HuggingFaceSource needs the package `datasets`: pip install 'lfl[huggingface]'."


class HuggingFaceSource(Source):
    """A data set of Hugging Face's ``datasets``. Items are dicts of its columns, and so are batches.

    Numbers, and lists of them, become tensors; texts ride along. Names of a column ``ClassLabel`` become the classes.

    Args:
        path: folder that ``save_to_disk`` wrote, or a name on the hub, ``imdb``. The hub's are looked for among those
            that were loaded before, unless ``download``. ``./imdb`` is a folder only.
        name: name of one of several configurations of a data set of the hub.
        split: split that is the training set; a folder with a single split needs none.
        test_split: split that is the test set; none to hold out ``test_fraction`` of the training set.
        test_fraction: share of the training set, drawn alike in every run, if there is no ``test_split``.
        target: column of the class labels, or of targets of a regression; none if there is no such column, as for a
            language model.
        num_classes: number of classes; none for that of the ``ClassLabel``, or 0.
        groups: column of the natural group (user, writer) of each example; none if the data has no groups.
        columns: columns that items consist of, beside ``target``; none for all but ``groups``.
        input: column that transforms are for.
        collate_fn: makes a batch of a list of items, such as `PadCollate` for sequences of different lengths.
        in_memory: read all items once; if false, each item is read when a batch needs it.
        download: fetch a data set of the hub that is not there.

    Raises:
        ModuleNotFoundError: the package ``datasets`` is missing.
        FileNotFoundError: there is no such data set.
        ValueError: it has no such split or column.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        split: str = "train",
        test_split: str | None = "test",
        test_fraction: OpenUnitInterval = 0.2,
        target: str | None = "label",
        num_classes: NonNegativeInt | None = None,
        groups: str | None = None,
        columns: list[str] | None = None,
        input: str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        in_memory: bool = True,
        download: bool = False,
    ) -> None:
        if test_split is None:
            check_number("HuggingFaceSource", "test_fraction", test_fraction, above=0, below=1)
        self.path = path
        self.name = name
        self.split = split
        self.test_split = test_split
        self.test_fraction = test_fraction
        self.target = target
        self.groups = groups
        self.columns = columns
        self.input = input
        self.collate_fn = collate_fn
        self.in_memory = in_memory
        self.download = download
        self._num_classes = num_classes

    @property
    def num_classes(self) -> int:  # type: ignore[override]  # known when the data is there
        """The number of classes; that of the ``ClassLabel`` if nobody said so."""
        return len(self._names or ()) if self._num_classes is None else self._num_classes

    @property
    @override
    def format(self) -> ItemFormat:
        return ItemFormat(self.target, self.input, self.collate_fn)

    @override
    def check(self) -> None:
        if not self.download:
            _ = self._splits

    @override
    def prepare(self) -> None:
        _ = self._splits

    @override
    def load(self) -> tuple[Data, Data]:
        train, test = (self._items(rows) for rows in self._splits)
        found = examined(
            train, test, self.num_classes, type(self).__name__, in_memory=self.in_memory, format=self.format
        )
        train_set, test_set = (self._named(part) for part in found)
        return train_set, test_set

    def _items(self, rows: Any) -> Any:
        """Some columns of a data set; labels and groups are read from their columns alone."""
        columns = rows.with_format("torch", columns=self._kept(rows))
        data: Any = KeptItems(_rows_of(columns[:])) if self.in_memory else _Rows(columns)
        for attribute, column in (("targets", self.target), ("groups", self.groups)):
            if column is not None and _is_single(rows.features[column]):
                setattr(data, attribute, rows.with_format("numpy")[column][:])
        return data

    def _named(self, part: Examples) -> Examples:
        return part if self._names is None else replace(part, classes=tuple(self._names))

    @cached_property
    def _names(self) -> list[str] | None:
        """Names of the classes, where the labels' column has them."""
        train, _ = self._splits
        feature = train.features.get(self.target)
        names: list[str] | None = getattr(feature, "names", None)
        return sorted(train.unique(self.target)) if getattr(feature, "dtype", None) == "string" else names

    def _kept(self, split: Any) -> list[str]:
        wanted = self.columns
        if wanted is None:
            return [column for column in split.column_names if column != self.groups]
        return [*wanted, *([self.target] if self.target is not None and self.target not in wanted else [])]

    @cached_property
    def _splits(self) -> tuple[Any, Any]:
        """The training set and the test set, as ``datasets`` has them."""
        found = self._opened()
        is_single = not isinstance(found, dict)
        train = found if is_single else self._split_of(found, "split", self.split)
        if is_single or self.test_split is None:
            if is_single and self.test_split not in (None, "test"):
                raise DataError(
                    f"`test_split={self.test_split!r}`, but {self.path!r} has a single split: leave it out."
                )
            order = torch.randperm(len(train), generator=generator("hugging face split"))
            cut = round(self.test_fraction * len(train))
            train, test = (
                train.select(order[cut:].sort().values.numpy()),
                train.select(order[:cut].sort().values.numpy()),
            )
        else:
            test = self._split_of(found, "test_split", self.test_split)
        named: dict[str, list[str | None]] = {
            "target": [self.target],
            "groups": [self.groups],
            "input": [self.input],
            "columns": [*(self.columns or [])],
        }
        for setting, columns in named.items():
            for column in columns:
                if column is not None and column not in train.column_names:
                    raise DataError(
                        f"`{setting}={column!r}` is no column of {self.path!r}, which has: "
                        f"{', '.join(train.column_names)}. Set `target` to none if no column is the label."
                    )
        return train, test

    def _split_of(self, found: Any, setting: str, split: str) -> Any:
        if split not in found:
            raise DataError(f"`{setting}={split!r}` is no split of {self.path!r}, which has: {', '.join(found)}.")
        return found[split]

    def _opened(self) -> Any:
        try:
            import datasets
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(_EXTRA, name="datasets") from error
        folder = Path(self.path)
        if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(self.path)
        if folder.is_dir():
            raise FileNotFoundError(
                f"The folder {str(folder.resolve())!r} holds no data set that `save_to_disk` wrote: there is neither "
                "dataset_dict.json nor state.json. Load it with `datasets.load_dataset`, and save it."
            )
        if not _may_be_on_hub(self.path):
            raise FileNotFoundError(
                f"There is no data set at {str(folder.resolve())!r}: write one there by `save_to_disk` of `datasets`, "
                "as the first lines of a config may say, or set `path` to where it is, or to a name on the hub."
            )
        try:
            with nullcontext() if self.download else _offline():
                return datasets.load_dataset(self.path, self.name)
        except Exception as error:  # of many kinds, with and without a network
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            raise FileNotFoundError(
                f"There is no data set at {str(folder.resolve())!r}, nor is {self.path!r} among those of the hub that "
                f"were loaded before ({type(error).__name__}: {reason}). Set `path` to a folder that `save_to_disk` "
                f'wrote, or set `download: true`, or run once: python -c "{self._fetching_code()}".'
            ) from error

    def _fetching_code(self) -> str:
        name = f", {self.name!r}" if self.name else ""
        return f"import datasets; datasets.load_dataset({self.path!r}{name})"


class _Rows(Dataset[Any]):
    """The rows of a data set, each read when it is asked for."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


def _rows_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _is_single(feature: Any) -> bool:
    """Whether a column has one number or name a row."""
    return type(feature).__name__ in ("Value", "ClassLabel")


def _may_be_on_hub(path: str) -> bool:
    """Whether a path could be a data set's name: ``./data/mine`` and ``/data/mine`` are folders only."""
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # it is in the documentation

    try:
        validate_repo_id(path)
    except ValueError:
        return False
    return True


@contextmanager
def _offline() -> Iterator[None]:
    """Keep Hugging Face's packages offline, as ``HF_HUB_OFFLINE=1`` does, which is read when they are imported."""
    import datasets
    import huggingface_hub

    places: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value
