"""Where the labels of a batch are; what is refused is tried in test_fedntd.py."""

import pytest
import torch
from worlds import ragged_data

from lfl.callbacks.labels import check_labels, labels_of, read_labels


def test_labels_are_found_by_place_name_and_path() -> None:
    labels = torch.tensor([1, 2])
    assert labels_of((torch.zeros(2), labels), 1) is labels
    assert labels_of({"x": torch.zeros(2), "meta": {"label": labels}}, "meta.label") is labels
    with pytest.raises(KeyError):
        labels_of((torch.zeros(2), labels), "label")


def test_labels_of_training_examples() -> None:
    data = ragged_data()
    data.setup("fit")
    indices, _ = data.client_indices(torch.tensor([3, 0]))
    found = read_labels(data, indices, 1, seed=0)
    assert found.shape == indices.shape
    assert torch.equal(found, data.gather(indices)[1])
    check_labels("FedNTD", data, 1, seed=0)
