"""Targets and groups from whatever data sets keep them in."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from lfl.data.columns import DataError, as_column, as_labels, check_numbers, column_of, encoded, names_of

pandas = pytest.importorskip("pandas")


@pytest.mark.parametrize(
    "values",
    [
        [2, 0, 1],
        (np.int64(2), np.int64(0), np.int64(1)),
        [torch.tensor(2), torch.tensor(0), torch.tensor(1)],
        np.array([2, 0, 1], dtype=">i4"),
        np.array([2, 9, 0, 9, 1], dtype=np.uint16)[::2],
        np.array([2, 0, 1], dtype=object),
        pandas.Series([2, 0, 1], index=[7, 8, 9]),
        pandas.Series([2, 0, 1], dtype="Int64"),
        torch.tensor([2, 0, 1], requires_grad=False, dtype=torch.uint8),
    ],
    ids=lambda values: type(values).__name__,
)
def test_numbers(values: Any) -> None:
    assert as_labels(as_column(values, "x")).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    "values",
    [
        ["b", "a", "b"],
        np.array(["b", "a", "b"]),
        np.array([b"b", b"a", b"b"]),
        np.array([["b"], ["a"], ["b"]]),
        pandas.Series(["b", "a", "b"]),
        pandas.Series(["b", "a", "b"], dtype="category"),
    ],
    ids=lambda values: type(values).__name__,
)
def test_names(values: Any) -> None:
    column = as_column(values, "x")
    assert column.tolist() == ["b", "a", "b"]
    assert encoded(column, names_of([column]), "x").tolist() == [1, 0, 1]


def test_types_stay_where_they_are_not_labels() -> None:
    assert as_column(np.zeros((2, 3), dtype=np.float32), "x").dtype == torch.float32
    assert as_column(torch.zeros(2, 3, dtype=torch.uint8), "x").dtype == torch.uint8
    assert as_labels(torch.zeros(2, 3, dtype=torch.uint8)).shape == (2, 3)
    assert as_labels(torch.zeros(2, 1)).shape == (2, 1)  # floating point: a regression
    assert as_labels(torch.zeros(2, 1, dtype=torch.uint8)).dtype == torch.int64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1], [1, 2]], "Entry 1 of x has the shape [2], entry 0 [1]"),
        ([0, None, 1], "Entry 1 of x is 'None', a NoneType: all must be numbers, or all names (str)."),
        (["a", 1.5], None),
        (np.array(["a", np.nan], dtype=object), "Entry 1 of x is 'nan', a float"),
        ({0: 1}, "x is a dict: it must be a tensor, an array or a list."),
        (len, "x is a builtin_function_or_method"),
        (np.array([1j]), "x are complex128: they must be real numbers or names."),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "x are datetime64[D]"),
        (np.array([["a", "b"]]), "x are names of shape [1, 2]"),
    ],
)
def test_what_is_no_column(values: Any, message: str | None) -> None:
    if message is None:  # numpy makes a name of the number
        assert as_column(values, "x").tolist() == ["a", "1.5"]
        return
    with pytest.raises(DataError, match=re.escape(message)) as refused:
        as_column(values, "x")
    assert "\n" not in str(refused.value)


def test_nan_and_unknown_names_are_located() -> None:
    with pytest.raises(DataError, match="The target of example 1 of x is NaN"):
        check_numbers(torch.tensor([0.0, torch.nan]), "target", "x")
    check_numbers(torch.tensor([[0.0, torch.nan]]), "target", "x")  # some of several targets may be unknown
    with pytest.raises(DataError, match="Example 2 of x has 'c', which no training example has"):
        encoded(np.array(["a", "b", "c"]), ("a", "b"), "x")


class Labelled(Dataset[Any]):
    def __init__(self, targets: Any) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(1), self.targets[i]


def test_columns_of_wrapped_data_sets() -> None:
    one, two = Labelled([2, 0, 1]), Labelled(np.array([5, 6, 7]))
    both = ConcatDataset([one, two])
    assert column_of(Subset(both, [5, 0]), "targets", "x").tolist() == [7, 2]
    assert column_of(Subset(both, np.array([1])), "targets", "x").tolist() == [0]
    assert column_of(both, "groups", "x") is None
    assert column_of(TensorDataset(torch.zeros(2), torch.tensor([1, 0])), "targets", "x").tolist() == [1, 0]
    names = ConcatDataset([Labelled(["a", "b", "a"]), Labelled(["c", "c", "c"])])
    assert column_of(Subset(names, [3, 1]), "targets", "x").tolist() == ["c", "b"]


def test_a_wrapper_with_items_of_its_own_is_not_looked_through() -> None:
    class Relabelled(Subset[Any]):
        def __getitem__(self, i: int) -> Any:
            return self.dataset[self.indices[i]][0], 0

        def __getitems__(self, indices: list[int]) -> Any:
            return [self[i] for i in indices]

    assert column_of(Relabelled(Labelled([2, 0, 1]), [0]), "targets", "x") is None


@pytest.mark.parametrize("targets", [[0, 1], torch.zeros(4), np.int64(3)])
def test_other_lengths_are_refused(targets: Any) -> None:
    with pytest.raises(DataError, match=r"`targets` of x has (2|4|no) entries, but Labelled has 3 examples: give it"):
        column_of(Labelled(targets), "targets", "x")
    with pytest.raises(DataError, match="`targets` of the data set in x has"):
        column_of(Subset(Labelled(targets), [0]), "targets", "x")
