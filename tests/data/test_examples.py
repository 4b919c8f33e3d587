"""Data sets with what is known of all their examples."""

import pytest
import torch
from torch.utils.data import TensorDataset

from lfl.data import TensorData
from lfl.data.examples import ItemData


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
