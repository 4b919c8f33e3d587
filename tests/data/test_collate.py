"""Padding to the longest sequence of a batch, or to the next multiple."""

import re
from typing import Any

import pytest
import torch

from lfl.data import PadCollate
from lfl.data.columns import DataError

ITEMS = [{"ids": [7, 8, 9], "y": -1}, {"ids": torch.tensor([5]), "y": 2}]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[7, 8, 9], [5, -1, -1]]),
        ({"multiple_of": 4}, [[7, 8, 9, -1], [5, -1, -1, -1]]),
        ({"max_length": 2}, [[7, 8], [5, -1]]),
        ({"multiple_of": 4, "max_length": 3}, [[7, 8, 9], [5, -1, -1]]),
    ],
)
def test_named_parts_are_padded_and_the_rest_is_stacked(options: Any, expected: Any) -> None:
    batch = PadCollate({"ids": -1.0}, **options)(ITEMS)
    assert (batch["ids"].tolist(), batch["ids"].dtype) == (expected, torch.int64)
    assert batch["y"].tolist() == [-1, 2]


def test_sequences_of_vectors_and_parts_of_tuples() -> None:
    items = [((torch.ones(2, 3), "a"), 0), ((torch.ones(1, 3), "b"), 1)]
    (x, texts), y = PadCollate({"0.0": 0.5})(items)
    assert x[1].tolist() == [[1, 1, 1], [0.5, 0.5, 0.5]]
    assert (texts, y.tolist()) == (["a", "b"], [0, 1])


def test_faults_are_named() -> None:
    with pytest.raises(DataError, match="`values` of PadCollate names 'id', which is no part of the items: ids, y"):
        PadCollate({"id": 0})(ITEMS)
    two = [{"ids": [1], "mask": [1]}, {"ids": [1, 2], "mask": [1, 1]}]
    message = "Items of a batch have a part 'mask' of the shapes [1], [2]: name it in `values` of PadCollate"
    with pytest.raises(DataError, match=re.escape(message)):
        PadCollate({"ids": 0})(two)
    with pytest.raises(ValueError, match="`multiple_of=0` of PadCollate must be a whole number of at least 1"):
        PadCollate({"ids": 0}, multiple_of=0)
    with pytest.raises(ValueError, match=r"`values=\['ids'\]` of PadCollate pads nothing"):
        PadCollate(["ids"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pads nothing"):
        PadCollate({})


@pytest.mark.parametrize("part", [None, 3, "text"])
def test_parts_that_are_no_sequences_are_named(part: Any) -> None:
    with pytest.raises(DataError, match="names 'ids', which is not a sequence of numbers in every item"):
        PadCollate({"ids": 0})([{"ids": [1, 2]}, {"ids": part}])
    with pytest.raises(DataError, match="names 'ids', which is not a sequence of numbers in every item"):
        PadCollate({"ids": 0})([{"ids": [1, 2]}, {}])


def test_a_sequence_without_entries_has_the_type_of_the_others() -> None:
    batch = PadCollate({"ids": 0})([{"ids": []}, {"ids": [1, 2]}])["ids"]
    assert torch.equal(batch, torch.tensor([[0, 0], [1, 2]]))
    assert batch.dtype == torch.int64
