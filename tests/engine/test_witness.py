"""A step that differs from that of one client at a time is found out; rounding is not."""

from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import mlp

from lfl.client.model import ClientModel
from lfl.client.step import StepInput, StepResult
from lfl.engine.vectorized import vectorized_step
from lfl.engine.witness import Difference, Witness


def world(dtype: torch.dtype = torch.float64, rows: int = 5, width: int = 4) -> tuple[ClientModel, Tensor, StepInput]:
    draws = torch.Generator().manual_seed(0)
    module = mlp().to(dtype)
    model = ClientModel(module)
    batch = (
        torch.randn(rows, width, 1, 8, 8, generator=draws, dtype=dtype),
        torch.randint(4, (rows, width), generator=draws),
    )
    start = model.flat_parameters()
    params = start + 0.1 * torch.randn(rows, len(start), generator=draws, dtype=dtype)
    return model, params, StepInput(batch, torch.arange(rows), start)


def taken(model: ClientModel, params: Tensor, input: StepInput) -> StepResult:
    with model.recording():
        return vectorized_step(model, params, input)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounding_is_no_difference(dtype: torch.dtype) -> None:
    model, params, input = world(dtype)
    Witness(model).check(params, input, taken(model, params, input))


def test_what_is_not_finite_either_way_is_no_difference() -> None:
    model, params, input = world()
    input.batch[0][0, 0] = float("nan")
    result = taken(model, params, input)
    assert not result.gradients[0].isfinite().any()
    Witness(model).check(params, input, result)


@pytest.mark.parametrize("row", [0, 4])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda r, row: r.gradients[row, 0].add_(0.01), "the gradient of 'backbone"),
        (lambda r, row: r.gradients[row, -1].mul_(1.001), "the gradient of 'backbone"),
        (lambda r, row: r.gradients[row].fill_(float("nan")), "the gradient of"),
        (lambda r, row: r.losses[row].add_(1e-3), "the loss is 0.001 off"),
        (lambda r, row: r.logs["train_acc"][row].add_(0.25), "what it logs as 'train_acc' is 0.25 off"),
        (lambda r, row: r.logs.update(more=torch.zeros(5)), "it logs"),
    ],
)
def test_a_difference_is_named(change: Any, what: str, row: int) -> None:
    model, params, input = world()
    result = taken(model, params, input)
    change(result, row)
    with pytest.raises(Difference, match=what):
        Witness(model).check(params, input, result)


def test_padding_is_left_out() -> None:
    model, params, input = world()
    used = (torch.arange(4) < torch.tensor([4, 3, 2, 1, 0])[:, None]).double()
    padded = input._replace(weights=used / used.sum(1, keepdim=True).clamp(min=1))
    result = taken(model, params, padded)
    Witness(model).check(params, padded, result)
    result.gradients[3] *= 1.01
    with pytest.raises(Difference):
        Witness(model).check(params, padded, result)


@pytest.mark.parametrize("rate", [0.1, 1e-6, 0.0])
def test_descents_are_compared_up_to_what_the_subtraction_rounds_away(rate: float) -> None:
    model, params, input = world(torch.float32)
    result = taken(model, params, input)
    after = params - rate * result.gradients
    Witness(model).check_descent(params, after, rate, input, result.losses, result.logs)
    if rate == 0.1:
        with pytest.raises(Difference):
            Witness(model).check_descent(params, after + 0.01, rate, input, result.losses, result.logs)


def test_only_what_is_trained_has_a_gradient() -> None:
    model, params, input = world()
    trained = [name for name in model.layout.names if "head" in name or name.endswith("bias")]
    with model.recording(), model.training_only(trained):
        result = vectorized_step(model, params, input)
    Witness(model, trained).check(params, input, result)
    with pytest.raises(Difference):
        Witness(model).check(params, input, result)


def test_it_leaves_the_module_alone() -> None:
    model, params, input = world()
    before = model.flat_parameters()
    Witness(model).check(params, input, taken(model, params, input))
    assert torch.equal(model.flat_parameters(), before)
