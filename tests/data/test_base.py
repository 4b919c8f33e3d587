"""What every data module serves of its partition."""

import pytest
import torch
from worlds import QuadraticData

from lfl.data.partition import IndexSets, Partition


def three_clients() -> QuadraticData:
    """Examples 0 to 5: client 0 has 1 and 4, client 1 has 5, client 2 has 0, 2 and 3; tests: 2 has 0, 0 has 1."""
    data = QuadraticData(num_clients=6)
    train = IndexSets.from_owners(torch.tensor([2, 0, 2, 2, 0, 1]), 3)
    data.partition, data.num_clients = Partition(train, IndexSets.from_owners(torch.tensor([2, 0]), 3)), 3
    return data


def test_positions_are_padded_with_zero() -> None:
    data = three_clients()
    indices, sizes = data.client_indices(torch.tensor([2, 1]))
    assert indices.tolist() == [[0, 2, 3], [5, 0, 0]]
    assert sizes.tolist() == [3, 1]
    indices, sizes = data.client_test_indices(torch.tensor([1, 0]))
    assert indices.tolist() == [[0], [1]]
    assert sizes.tolist() == [0, 1]


def test_sizes_and_facts() -> None:
    data = three_clients()
    assert data.client_sizes.tolist() == [2, 1, 3]
    assert data.client_test_sizes.tolist() == [1, 0, 1]
    facts = data.describe()
    assert facts.pop("partition") == data.partition.fingerprint()
    assert facts == {
        "clients": 3,
        "train_examples": 6,
        "test_examples": 2,
        "smallest_client": 1,
        "median_client": 2,
        "largest_client": 3,
    }


def test_examples_of_each_class_are_counted_where_there_are_classes() -> None:
    data = three_clients()
    with pytest.raises(ValueError, match="training examples of QuadraticData have no class labels"):
        data.label_counts()
    data.train_labels = torch.tensor([0, 1, 0, 2, 2, 0])
    assert data.label_counts().tolist() == [[0, 1, 1], [1, 0, 0], [2, 0, 1]]
