"""Sources that come with a package, and data sets given as objects."""

import re
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from lfl.data import MNIST5000, DatasetSource, Digits, TensorData


class Squares(Dataset[Any]):
    """Items (i, i^2 modulo 3), without attributes that would say so."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(i)]), i * i % 3


@pytest.mark.parametrize(
    ("source", "shape", "total"), [(MNIST5000(), (1, 28, 28), 5000), (Digits(), (1, 8, 8), 1797)], ids=repr
)
def test_packaged_images(source, shape, total):
    source.check()
    train, test = source.load()
    assert len(train) + len(test) == total
    assert train.inputs.shape[1:] == test.inputs.shape[1:] == shape
    assert train.inputs.dtype == torch.float32
    assert train.targets.dtype == torch.int64
    assert float(train.inputs.min()) == 0
    assert float(train.inputs.max()) == 1
    both = torch.cat([train.targets, test.targets]).bincount(minlength=source.num_classes)
    assert torch.equal(test.targets.bincount(), (both * 0.2).round().long())


def test_the_split_is_the_same_each_time_and_disjoint():
    train, test = Digits(0.3).load()
    again, _ = Digits(0.3).load()
    assert torch.equal(train.inputs, again.inputs)
    rows = {tuple(image) for image in train.inputs.flatten(1).tolist()}
    assert not any(tuple(image) in rows for image in test.inputs.flatten(1).tolist())


@pytest.mark.parametrize("source", [MNIST5000, Digits])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_test_fraction_out_of_range(source, value):
    with pytest.raises(ValueError, match=f"`test_fraction={value}` of {source.__name__} must lie between 0 and 1"):
        source(value)


def test_a_dataset_is_stacked_or_kept():
    train, _ = DatasetSource(Squares(), Squares(), num_classes=3).load()
    assert isinstance(train, TensorData)
    assert train.inputs.flatten().tolist() == list(range(9))
    assert train.targets.tolist() == [0, 1, 1] * 3
    kept = Squares()
    assert DatasetSource(kept, Squares(), num_classes=3, in_memory=False).load()[0] is kept


def test_an_iterable_dataset_is_refused():
    class Stream(IterableDataset[Any]):
        def __iter__(self):
            return iter(())

    with pytest.raises(TypeError, match=re.escape("`test` of DatasetSource is Stream, which is not map-style")):
        DatasetSource(Squares(), Stream(), num_classes=3)


def test_the_text_of_a_source_is_one_line():
    assert repr(DatasetSource(Squares(), Squares(), 3)) == "DatasetSource(train=Squares, test=Squares, in_memory=True)"
    assert repr(Digits(0.3)) == "Digits(test_fraction=0.3)"


class Named(Dataset[Any]):
    """Items of another kind."""

    def __init__(self, item: Any) -> None:
        self.item, self.targets = item, torch.zeros(3, dtype=torch.long)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        return self.item


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    ("item", "found"),
    [
        ({"x": torch.zeros(2), "y": {1}}, "a dict [x: Tensor, y: set]"),
        (((torch.zeros(2), object()), 1), "a tuple [0.0: Tensor, 0.1: object, 1: int]"),
        (("only a text", "and its name"), "a tuple [0: str, 1: str]"),
        ((), "a tuple []"),
    ],
)
def test_items_of_another_kind_are_refused(item: Any, in_memory: bool, found: str) -> None:
    source = DatasetSource(Squares(), Named(item), num_classes=3, in_memory=in_memory)
    with pytest.raises(ValueError, match="`test` of DatasetSource must be tuples, dicts or lists of ten") as refused:
        source.load()
    assert f"the first of Named is {found}: convert it" in str(refused.value)
