"""Data sets with what is known of all their examples."""

import pytest
import torch
from torch.utils.data import TensorDataset

from lfl.data import TensorData
from lfl.data.examples import ItemData, NestData, merged


def test_tensor_data_is_a_dataset_and_checks_its_lengths() -> None:
    data = TensorData(torch.arange(3.0), torch.tensor([0, 1, 2]), torch.tensor([7, 8, 9]))
    assert [tuple(map(float, data[i])) for i in range(len(data))] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(ValueError, match="Got 3 inputs, 2 targets, 2 groups"):
        TensorData(torch.arange(3.0), torch.tensor([0, 1]))


def test_a_subset_knows_what_the_whole_knew() -> None:
    inputs, targets, groups = torch.arange(3.0), torch.tensor([0, 1, 2]), torch.tensor([7, 8, 9])
    names = {"classes": ("a", "b", "c"), "users": ("u",) * 10}
    in_memory = TensorData(inputs, targets, groups, **names).subset(torch.tensor([2, 0]))
    read = ItemData(TensorDataset(inputs, targets), "data", targets, groups, **names).subset(torch.tensor([2, 0]))
    assert len(in_memory) == len(read) == 2
    for part in (in_memory, read):
        assert (part.targets.tolist(), part.groups.tolist()) == ([2, 0], [9, 7])
        assert (part.classes, part.users) == (("a", "b", "c"), ("u",) * 10)
    assert tuple(map(float, read.dataset[0])) == tuple(map(float, in_memory[0])) == (2, 2)


def test_two_sets_become_one() -> None:
    """The second's examples come behind the first's; groups stay if both have some."""
    targets, groups = torch.tensor([0, 1, 2]), torch.tensor([7, 8, 9])
    inputs = torch.arange(3.0)
    one, other = TensorData(inputs, targets, groups, ("a", "b", "c")), TensorData(inputs + 3, targets, groups)
    nests = [NestData({"x": inputs + 3 * i, "t": targets}, targets, groups, input=("x",)) for i in range(2)]
    items = [ItemData(TensorDataset(inputs + 3 * i, targets), "data", targets, groups) for i in range(2)]
    for both in (merged(one, other), merged(*nests), merged(*items)):
        assert len(both) == 6
        assert both.targets.tolist() == [0, 1, 2, 0, 1, 2]
        assert both.groups.tolist() == [7, 8, 9, 7, 8, 9]
    assert merged(one, other).inputs.tolist() == [0, 1, 2, 3, 4, 5]
    assert merged(one, other).classes == ("a", "b", "c")
    assert merged(*nests).parts["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert float(merged(*items).dataset[4][0]) == 4
    assert merged(one, TensorData(inputs, targets)).groups is None


def test_sets_that_are_no_one_set() -> None:
    targets = torch.tensor([0, 1, 2])
    one = TensorData(torch.zeros(3, 2), targets)
    with pytest.raises(ValueError, match=r"cannot be merged: Sizes of tensors must match"):
        merged(one, TensorData(torch.zeros(3, 3), targets))
    with pytest.raises(ValueError, match=r"cannot be merged: one is TensorData, the other ItemData"):
        merged(one, ItemData(TensorDataset(targets), "data", targets))
