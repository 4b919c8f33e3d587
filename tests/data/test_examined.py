"""Faults of data sets, found before training; and names that become numbers."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from lfl.data import ClassesPerClientPartitioner, DatasetSource, FederatedDataModule, ShardPartitioner, TensorData
from lfl.data.columns import DataError
from lfl.data.examined import examined
from lfl.data.examples import ItemData

BOTH = pytest.mark.parametrize("in_memory", [True, False])


class Items(Dataset[Any]):
    """Items (i, label i modulo 4) unless told otherwise; attributes as given."""

    def __init__(self, count: int = 40, labels: Any = None, shapes: Any = None, **attributes: Any) -> None:
        self.count, self.labels, self.shapes = count, labels, shapes
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        shape = () if self.shapes is None else self.shapes[i]
        return torch.full((2, *shape), float(i)), i % 4 if self.labels is None else self.labels[i]


def setup(train: Any, test: Any = None, in_memory: bool = True, num_classes: int = 4) -> FederatedDataModule:
    source = DatasetSource(train, train if test is None else test, num_classes, in_memory)
    data = FederatedDataModule(source, ShardPartitioner(), num_clients=2, batch_size=4)
    data.setup("fit")
    return data


def labels_of(data: FederatedDataModule, count: int) -> list[int]:
    return data.gather(torch.arange(count))[1].tolist()


class PassesOn(Subset[Any]):
    def __getattr__(self, name: str) -> Any:
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


HALF = list(range(0, 40, 2))
FAULTS: dict[str, tuple[Dataset[Any], str]] = {
    "short targets": (
        Items(targets=[0] * 10),
        "`targets` of `train` of DatasetSource has 10 entries, but Items has 40",
    ),
    "short groups": (Items(groups=[0] * 10), "`groups` of `train` of DatasetSource has 10 entries, but Items has 40"),
    "a wrapper's": (PassesOn(Items(targets=[0] * 40), HALF), "has 40 entries, but PassesOn has 20 examples: give it"),
    "a wrapper's groups": (PassesOn(Items(groups=[0] * 40), HALF), "`groups` of `train` of DatasetSource has 40"),
    "wrong targets": (
        Items(targets=[0] * 40),
        "make `targets` what `__getitem__` returns, or leave it out.",
    ),
    "shuffled targets": (Items(targets=np.arange(40)[::-1] % 4), "says 3 for example 0, but the item has the target 0"),
    "wrong names": (Items(targets=["a", "b"] * 20), "'a', but its item has the label 2, while others called so have 0"),
    "names for all": (
        Items(labels=["x"] * 40, targets=[0] * 40),
        "says 0 for example 0, but the item has the target 'x'",
    ),
    "too large": (
        Items(labels=[0] * 30 + [4] * 10),
        "Example 30 of `train` of DatasetSource has the label 4, which is ",
    ),
    "negative": (
        Items(labels=[0] * 39 + [-1]),
        "Example 39 of `train` of DatasetSource has the label -1, which is outside 0..3",
    ),
    "NaN": (
        Items(labels=[0.0] * 9 + [float("nan")] * 31),
        "The target of example 9 of `train` of DatasetSource is NaN",
    ),
    "groups with NaN": (
        Items(groups=np.array([np.nan] * 40)),
        "The group of example 0 of `train` of DatasetSource is NaN",
    ),
    "wide groups": (Items(groups=np.zeros((40, 2))), "must be one whole number or name for each example"),
    "half groups": (Items(groups=[0.5] * 40), "must be one whole number or name for each example"),
    "None": (Items(targets=[0, None] * 20), "Entry 1 of `targets` of `train` of DatasetSource is 'None', a NoneType"),
    "shapes": (
        Items(shapes=[()] * 5 + [(3,)] * 35),
        "Item 5 of `train` of DatasetSource has a part of shape [2, 3], item 0 of [2]",
    ),
    "label shapes": (
        Items(labels=[[1]] * 6 + [[1, 2]] * 34),
        "Item 6 of `train` of DatasetSource has a part of shape [2], item 0 of [1]",
    ),
    "empty": (Items(0), "`train` of DatasetSource has no examples."),
}


@BOTH
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_one_line(fault: str, in_memory: bool) -> None:
    data, message = FAULTS[fault]
    with pytest.raises(DataError, match=re.escape(message)) as refused:
        setup(data, Items(), in_memory)
    assert "\n" not in str(refused.value)


@BOTH
def test_the_test_set_is_examined_too(in_memory: bool) -> None:
    with pytest.raises(DataError, match="Example 7 of `test` of DatasetSource has the label 9"):
        setup(Items(), Items(8, labels=[0] * 7 + [9]), in_memory)


def test_sources_that_give_tensors_are_examined_too(caplog: pytest.LogCaptureFixture) -> None:
    x, y = torch.zeros(4, 2), torch.tensor([[0], [1], [2], [3]])
    train, _ = examined(TensorData(x, y), TensorData(x, y), 4)
    assert train.targets.tolist() == [0, 1, 2, 3]
    with pytest.raises(
        DataError, match=r"label 3, which is outside 0\.\.2: count labels from 0, or set `num_classes` \(now 3"
    ):
        examined(TensorData(x, y), TensorData(x, y), 3)
    x[2, 1] = torch.nan
    with caplog.at_level("INFO"):
        examined(TensorData(x, y), TensorData(x[:1], y[:1]), 4, "Mine")
    assert "1 inputs of `train` of Mine hold NaN, the first is example 2." in caplog.text


@BOTH
@pytest.mark.parametrize(
    "labels",
    [torch.arange(40)[:, None] % 4, np.arange(40, dtype=np.uint8)[:, None] % 4, np.arange(40, dtype=np.int16) % 4],
    ids=["tensor", "bytes", "short"],
)
def test_labels_of_any_shape_and_type_become_labels(labels: Any, in_memory: bool) -> None:
    for attributes in ({}, {"targets": labels}):
        data = setup(Items(labels=labels, **attributes), in_memory=in_memory)
        batch = data.gather(torch.tensor([[3, 6]]))[1]
        assert (batch.tolist(), batch.dtype) == ([[3, 2]], torch.int64)
        assert next(iter(data.test_dataloader()))[1].shape == (40,)


@BOTH
def test_subsets_have_the_labels_of_their_examples(in_memory: bool) -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()
    for whole in (Items(), Items(targets=np.arange(40) % 4)):
        source = DatasetSource(Subset(whole, order), Items(), 4, in_memory)
        data = FederatedDataModule(source, ClassesPerClientPartitioner(1), num_clients=4)
        data.setup("fit")
        held = [set(data.gather(data.partition.client(c)[None])[1].flatten().tolist()) for c in range(4)]
        assert sorted(map(list, held)) == [[0], [1], [2], [3]]


@BOTH
def test_named_labels_are_numbered_in_ascending_order(in_memory: bool) -> None:
    train, test = Items(labels=["dog", "cat", "eel", "cat"] * 10), Items(3, labels=["eel", "cat", "eel"])
    for attributes in ({}, {"targets": train.labels}):
        train.__dict__.update(attributes)
        data = setup(train, test, in_memory)
        assert data.classes == ("cat", "dog", "eel")
        assert labels_of(data, 4) == [1, 0, 2, 0]
        assert data.gather_test(torch.arange(3))[1].tolist() == [2, 0, 2]
    with pytest.raises(
        DataError, match="Example 1 of `test` of DatasetSource has 'wolf', which no training example has"
    ):
        setup(train, Items(2, labels=["cat", "wolf"]), in_memory)
    with pytest.raises(DataError, match="Example 2 of `train` of DatasetSource has the label 2, which is outside"):
        setup(train, test, in_memory, num_classes=2)
    with pytest.raises(DataError, match="must both be names, or both numbers"):
        setup(train, Items(), in_memory)


@BOTH
def test_names_of_targets_get_the_numbers_of_items(in_memory: bool) -> None:
    """The data set itself says which number a name has; it need not be the ascending order."""
    data = setup(
        Items(targets=["dog", "cat", "eel", "ant"] * 10), Items(4, targets=["dog", "cat", "eel", "ant"]), in_memory
    )
    assert data.classes == ("dog", "cat", "eel", "ant")
    assert labels_of(data, 4) == [0, 1, 2, 3]
    assert data.partition.classes == data.classes
    with pytest.raises(DataError, match="The class 'cat' has the label 0 in `test` of DatasetSource, which"):
        setup(Items(targets=["dog", "cat", "eel", "ant"] * 10), Items(2, targets=["cat", "dog"]), in_memory)


def test_labels_that_are_drawn_are_no_fault() -> None:
    """A tenth of the labels is noise; `targets` has the clean ones, which other draws show."""

    class Noisy(Items):
        def __getitem__(self, i: int) -> Any:
            return torch.zeros(2), int(torch.randint(4, ())) if torch.rand(()) < 0.1 else i % 4

    assert setup(Noisy(targets=torch.arange(40) % 4), in_memory=False).num_classes == 4


def test_what_is_known_of_items_that_stay_where_they_are() -> None:
    items = Items(targets=np.arange(40) % 4, groups=["u1", "u0"] * 20)
    train, test = examined(items, Items(2, groups=["u7", "u0"]), 4)
    assert isinstance(train, ItemData)
    assert train.dataset is items
    assert train.has_labels
    assert train.users == test.users == ("u0", "u1", "u7")
    assert (train.groups[:2].tolist(), test.groups.tolist()) == ([1, 0], [2, 0])
    with pytest.raises(DataError, match="The groups of `train` of Items and `test` of Items must both be names"):
        examined(items, Items(2, groups=[0, 1]), 4)


def test_soft_labels_beside_targets_are_not_compared() -> None:
    soft = torch.eye(4)[torch.arange(40) % 4]
    train, _ = examined(Items(labels=soft, targets=torch.arange(40) % 4), Items(), 4)
    assert train.targets.tolist() == [0, 1, 2, 3] * 10


def test_draws_that_are_kept_in_memory_are_warned_of() -> None:
    class Noisy(Items):
        def __getitem__(self, i: int) -> Any:
            return torch.rand(2), i % 4

    with pytest.warns(
        UserWarning, match="draw from torch's global generator, but are kept in memory: each is drawn once"
    ):
        setup(Noisy(), Items())
    setup(Noisy(), Items(), in_memory=False)
