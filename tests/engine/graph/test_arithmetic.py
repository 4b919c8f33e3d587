"""Arithmetic, views and writes in place: what they make of examples."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lfl.engine.graph.separable import why_not_a_mean

PARAMS = torch.linspace(1, 2, 3).double()
BATCH = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0)).double()


def reason_of(function: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    return why_not_a_mean(lambda params, x: {"its loss": function(params, x)}, PARAMS, BATCH)


def first_channel_zero(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 0] = 0.0
    return x


def first_example_zero(x: Tensor) -> Tensor:
    x = x.clone()
    x[0] = 0.0
    return x


def halved_in_place(x: Tensor) -> Tensor:
    total = x.sum()
    total /= 2 * len(x)
    return total


def filled(x: Tensor) -> Tensor:
    result = torch.empty_like(x)
    for channel in range(4):
        result[:, channel] = x[:, 3 - channel]
    return result


@pytest.mark.parametrize(
    "function",
    [
        lambda p, x: (x.transpose(0, 1).reshape(-1, 3) * p).view(4, -1, 3).square().mean(),  # [T * b, V]
        lambda p, x: (x.reshape(-1, 3) @ p).view(-1, 4).softmax(1).square().mean(),
        lambda p, x: torch.bmm(x, x.transpose(1, 2)).square().mean() * p.sum(),
        lambda p, x: torch.addmm(p, x[:, 0], torch.ones(3, 3).double(), alpha=0.5).square().mean(),
        lambda p, x: (x[:, 0].T @ (x[:, 1] * p)).sum() / len(x),  # a product over the batch is a sum over it
        lambda p, x: (x.mean(0) * p).sum() + x.sum() / x.shape[0] - p.square().sum(),
        lambda p, x: torch.stack([(x * p).mean(), x.square().mean()]).sum(),
        lambda p, x: (first_channel_zero(x) * p).square().mean(),
        lambda p, x: halved_in_place((x * p).square()),
        lambda p, x: (filled(x) * p).square().mean(),
        lambda p, x: (x * p).flip(1).roll(1, 2).tril().square().mean(),
        lambda p, x: ((x * p).sum((1, 2)) > 0).double().mean(),
    ],
)
def test_means(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert reason_of(function) is None
    singles = [function(PARAMS, BATCH[i : i + 1]) for i in range(len(BATCH))]
    torch.testing.assert_close(function(PARAMS, BATCH), torch.stack(singles).mean())


@pytest.mark.parametrize(
    ("function", "gist"),
    [
        (lambda p, x: (x.transpose(0, 1).reshape(-1, 3) + x.reshape(-1, 3)).square().mean(), "beside other examples"),
        (lambda p, x: (x.transpose(0, 1).reshape(-1, 12) * p.sum()).softmax(1).mean(), "into parts"),
        (lambda p, x: x.transpose(0, 2).softmax(2).square().mean(), "across the examples"),
        (lambda p, x: (x.mean(0) @ x.mean(0).T).sum(), "not linear"),
        (lambda p, x: x.sum() + p.sum(), "number of examples"),
        (lambda p, x: (x * p).sum() / x.shape[0] ** 2, "number of examples"),
        (lambda p, x: (x / len(x)).tanh().sum(), "number of examples"),
        (lambda p, x: (first_example_zero(x) * p).square().mean(), "writes into a value"),
        (lambda p, x: ((x * p).sum() / len(x)).round(), "not linear"),
        (lambda p, x: (x * p).sum() // len(x), "not linear"),
        (lambda p, x: (x * p).mean().long().double(), "not linear"),
        (lambda p, x: x[:, : len(x) - 1].mean(), "number of examples"),
        (lambda p, x: x.repeat(2, 1, 1).cumsum(0).mean(), "repeats the examples"),
    ],
)
def test_others(function: Callable[[Tensor, Tensor], Tensor], gist: str) -> None:
    reason = reason_of(function)
    assert reason is not None
    assert gist in reason
