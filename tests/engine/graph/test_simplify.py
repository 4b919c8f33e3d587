"""Operations that change nothing, or are the same at every call, leave the list; every bit stays."""

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from lfl.engine.graph.simplify import simplify

X = torch.tensor([[-0.0, 1.0, float("inf")], [float("nan"), -2.0, 3.0]])


def operations(function, x: Tensor = X) -> Counter[str]:
    """The operations that are left, after a look that they give the same bits."""
    recorded = simplify(make_fx(function)(x))
    recorded.recompile()
    found, expected = recorded(x), function(x)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    return Counter(node.target.__name__ for node in recorded.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(2, 3).sin(),
        lambda x: x.expand(2, 3).sin(),
        lambda x: x.detach().sin(),
        lambda x: (x * 1).sin(),
        lambda x: torch.ops.aten.mul.Scalar(x, 1).sin(),
        lambda x: x.pow(1).sin(),
        lambda x: x.t().t().sin(),
        lambda x: torch.cat([x]).sin(),
        lambda x: x.split([3], dim=1)[0].sin(),
    ],
)
def test_what_returns_its_input_is_dropped(function) -> None:
    assert sum(operations(function).values()) == 1


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x.view(3, 2).sin(), 2),
        (lambda x: x.t().sin(), 2),
        (lambda x: x.expand(4, 2, 3).sin(), 2),
        (lambda x: (x * 2).sin(), 2),
        (lambda x: torch.ops.aten.mul.Scalar(x, 2).sin(), 2),
        (lambda x: x.pow(2).sin(), 2),
    ],
)
def test_what_changes_shape_or_value_stays(function, count: int) -> None:
    assert sum(operations(function).values()) == count


def test_a_copy_of_strided_rows_stays() -> None:
    """Joining one tensor makes it contiguous, and the order in which a kernel adds may follow strides."""
    assert operations(lambda x: torch.cat([x.t()]).sin())["cat.default"] == 1
    assert operations(lambda x: torch.cat([x]).sin())["cat.default"] == 0


def test_constants_are_computed_once() -> None:
    left = operations(lambda x: x + torch.arange(3.0).cos() * torch.ones_like(x).sum())
    assert left == {"add.Tensor": 1}


def test_random_numbers_and_what_the_module_holds_are_no_constants() -> None:
    held = torch.ones(3)
    recorded = simplify(make_fx(lambda x: x + held.cos() + torch.rand(3))(X))
    left = Counter(node.target.__name__ for node in recorded.graph.nodes if node.op == "call_function")
    assert left == {"add.Tensor": 2, "cos.default": 1, "rand.default": 1}


def test_what_is_computed_twice_is_shared() -> None:
    assert operations(lambda x: x.sin() + x.sin() * x.cos())["sin.default"] == 1


def test_with_a_write_in_place_nothing_is_dropped() -> None:
    """A dropped copy would show the write in its source."""

    def function(x: Tensor) -> Tensor:
        same = x.pow(1)
        return same.add_(1) + x

    assert operations(function)["pow.Tensor_Scalar"] == 1
