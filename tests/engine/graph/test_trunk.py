"""Recorded steps, cut where frozen layers end."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lfl.client.step import StepInput, StepResult
from lfl.engine.graph.record import leaves_of, record
from lfl.engine.graph.trunk import Split, split

SIZES = [12, 6, 2]  # weights [3, 4], weights [2, 3] and a bias
FIRST, REST, ALL = slice(0, 12), slice(12, 20), slice(0, 20)
GENERATOR = torch.Generator().manual_seed(0)
PARAMS = torch.randn(2, 20, generator=GENERATOR, dtype=torch.float64)
INPUT = StepInput(
    batch=(torch.randn(2, 5, 4, generator=GENERATOR, dtype=torch.float64), torch.tensor([[0, 1, 1, 0, 1]] * 2)),
    keys=torch.arange(2),
    anchor=torch.zeros(20, dtype=torch.float64),
)


def hidden(params: Tensor, x: Tensor) -> Tensor:
    return torch.relu(x @ params[:, FIRST].view(2, 3, 4).mT)


def step_of(trained: slice, draws: bool = False) -> Any:
    """Two layers, with the gradient of the trained parameters alone, and zero elsewhere."""

    def step(params: Tensor, input: StepInput) -> StepResult:
        x, targets = input.batch
        start = params.detach().requires_grad_()
        first, second, bias = (
            part if trained.start <= place < trained.stop else part.detach()
            for part, place in zip(start.split(SIZES, dim=1), (0, 12, 18), strict=True)
        )
        h = torch.relu(x @ first.view(2, 3, 4).mT)
        h = h * (torch.rand_like(h) < 0.5) if draws else h
        scores = h @ second.view(2, 2, 3).mT + bias[:, None]
        losses = -scores.log_softmax(-1).gather(2, targets[..., None]).mean((1, 2))
        (gradient,) = torch.autograd.grad(losses.sum(), start)
        return StepResult(gradient, losses.detach(), {"size": h.detach().square().mean((1, 2))})

    return step


def cut(step: Any, trained: slice) -> tuple[Any, Split | None]:
    mask = torch.zeros(20, dtype=torch.bool)
    mask[trained] = True
    recorded, _ = record(step, PARAMS, INPUT)
    return recorded, split(recorded, mask, num_leaves=2, shape=(2, 5))


def test_both_parts_together_are_the_step() -> None:
    """What is kept is the hidden layer, from other parameters too; the rest does not read the batch's inputs."""
    step = step_of(REST)
    _, parts = cut(step, REST)
    assert parts is not None
    leaves = leaves_of(PARAMS, INPUT)
    kept = parts.trunk(*leaves)
    torch.testing.assert_close(kept[0], hidden(PARAMS, INPUT.batch[0]), rtol=0, atol=1e-14)
    assert {value.shape for value in kept} == {(2, 5, 3)}  # and its squares, whose mean is logged
    gradients, losses, size = parts.rest(*kept, *leaves)
    expected = step(PARAMS, INPUT)
    torch.testing.assert_close(gradients, expected.gradients, rtol=0, atol=1e-14)
    torch.testing.assert_close(losses, expected.losses, rtol=0, atol=1e-14)
    torch.testing.assert_close(size, expected.logs["size"], rtol=0, atol=1e-14)
    params, x, *others = leaves
    without = parts.rest(*kept, params, torch.full_like(x, torch.nan), *others)
    assert torch.equal(without[0], gradients)


@pytest.mark.parametrize(
    ("step", "trained"),
    [(step_of(ALL), ALL), (step_of(FIRST), FIRST)],
    ids=["nothing is frozen", "frozen layers stand behind trained ones"],
)
def test_nothing_is_kept_where_trained_parameters_come_first(step: Any, trained: slice) -> None:
    assert cut(step, trained)[1] is None


def test_what_is_drawn_is_not_kept() -> None:
    """The product ahead of the dropout is."""
    _, parts = cut(step_of(REST, draws=True), REST)
    assert parts is not None
    (kept,) = parts.trunk(*leaves_of(PARAMS, INPUT))
    torch.testing.assert_close(kept, hidden(PARAMS, INPUT.batch[0]), rtol=0, atol=1e-14)


def test_the_recording_stays_as_it_is() -> None:
    recorded, parts = cut(step_of(REST), REST)
    assert parts is not None
    recorded.recompile()
    gradients, *_ = recorded(*leaves_of(PARAMS, INPUT))
    torch.testing.assert_close(gradients, step_of(REST)(PARAMS, INPUT).gradients, rtol=0, atol=1e-14)
