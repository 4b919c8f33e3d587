"""What Python code learns of tensors' values is seen; what stays among tensors is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lfl.client.value_reads import ValueReads, out_of_reach

X = torch.tensor([1.0, 2.0, 2.0])
MASK = torch.tensor([True, False, True])

READS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: X.numpy(),
    "tolist": lambda: X.tolist(),
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "index": lambda: X[MASK],
    "nonzero": lambda: X.nonzero(),
    "_unique2": lambda: torch.unique(X),
    "masked_select": lambda: X.masked_select(MASK),
}


@pytest.mark.parametrize("name", READS)
def test_reads_are_found(name: str) -> None:
    with ValueReads() as reads:
        READS[name]()
    assert reads.found == {name}


@pytest.mark.parametrize("compute", [lambda: X[torch.tensor([0, 2])], lambda: X.where(MASK, 0.0).sum(), lambda: X[:2]])
def test_operations_on_tensors_are_none(compute: Callable[[], Tensor]) -> None:
    with ValueReads() as reads:
        compute()
    assert not reads.found


def test_values_are_said_to_be_out_of_reach() -> None:
    assert not torch.jit.is_tracing()
    with out_of_reach():
        assert torch.jit.is_tracing()
    assert not torch.jit.is_tracing()
