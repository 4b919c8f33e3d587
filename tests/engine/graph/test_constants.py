"""A recorded step may read numbers that are made of numbers, and nothing else."""

from collections.abc import Callable

import pytest
import torch
from recordings import NOTHING
from torch import Tensor

from lfl.client.step import StepInput, StepResult
from lfl.engine.graph.record import record

HELD = torch.ones(2)
ONES = torch.ones(1, 2)


def recorded(condition: Callable[[Tensor], Tensor]) -> int:
    """Record a step with a condition on one of its values; returns the number of its operations."""

    def step(params: Tensor, input: StepInput) -> StepResult:
        scale = 2.0 if condition(params) else 3.0
        return StepResult(params * scale, params.sum(dim=1), {})

    return len(record(step, ONES, NOTHING)[0].graph.nodes)


def mask() -> Tensor:
    return torch.full((3, 3), -torch.inf).triu(1)


def filled() -> Tensor:
    table = torch.zeros(3, 4)
    table[:, ::2] = torch.arange(3.0)[:, None].sin()
    return table


@pytest.mark.parametrize("condition", [lambda _: (mask() == mask()).all(), lambda _: filled().sum() > 0])
def test_what_is_made_of_numbers_may_be_read(condition: Callable[[Tensor], Tensor]) -> None:
    assert recorded(condition) > 0


def overwritten(params: Tensor) -> Tensor:
    table = torch.zeros(2)
    part = table[:1]
    table.copy_(params[0])
    return part.sum() > 0


@pytest.mark.parametrize(
    "condition",
    [lambda params: params.sum() > 0, lambda _: HELD.sum() > 0, lambda _: torch.rand(2).sum() > 0, overwritten],
    ids=["an argument", "what a module holds", "a draw", "a constant that was written into"],
)
def test_nothing_else_may(condition: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="data-dependent"):
        recorded(condition)
