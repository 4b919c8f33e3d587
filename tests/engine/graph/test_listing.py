"""Operations of a loss, with the lines that they come from."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lfl.engine.graph.listing import Listing

PARAMS, X = torch.ones(3, requires_grad=True), torch.arange(6).view(2, 3)


def listing_of(function: Callable[[Tensor, Tensor], Tensor]) -> Listing:
    return Listing(lambda params, x: {"its loss": function(params, x)}, PARAMS, [X])


def test_each_operation_has_its_line() -> None:
    def loss(params: Tensor, x: Tensor) -> Tensor:
        y = x * params
        return F.mse_loss(y, y + 1)

    listing = listing_of(loss)
    lines = {str(node.target): node.stack_trace for node in listing.nodes if node.op == "call_function"}
    start = loss.__code__.co_firstlineno
    assert lines["aten.mul.Tensor"] == f"test_listing.py:{start + 1}"
    assert lines["aten.mse_loss.default"] == f"test_listing.py:{start + 2}"
    assert listing.outputs["its loss"].item() == 1.0
    assert listing.gradients == []


def test_one_hot_is_listed_where_the_number_of_classes_is_given() -> None:
    hot = listing_of(lambda params, x: (F.one_hot(x[0], 4) * torch.arange(4)).sum() + params.sum())
    assert hot.outputs["its loss"].item() == 0 + 1 + 2 + 3
    with pytest.raises(ValueError, match="`num_classes`"):
        listing_of(lambda params, x: F.one_hot(x[0]).sum())


@pytest.mark.parametrize("read", [lambda x: sum(x[0].tolist()), lambda x: x.numpy().sum()])
def test_values_that_python_reads_are_no_constants(read: Callable[[Tensor], float]) -> None:
    with pytest.raises(ValueError, match="reads the values"):
        listing_of(lambda params, x: params.sum() * read(x))


def test_hooks_are_gradients_of_their_own() -> None:
    def loss(params: Tensor, x: Tensor) -> Tensor:
        y = x * params
        y.register_hook(lambda gradient: gradient / gradient.norm())
        return y.sum()

    assert listing_of(loss).gradients == ["Tensor.register_hook"]
