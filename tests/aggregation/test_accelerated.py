"""Nesterov's method in three sequences."""

import pytest
import torch
from torch import Tensor

from lfl.aggregation import ThreeSequenceSGD


def path(optimizer: torch.optim.Optimizer, x: torch.nn.Parameter, curvature: Tensor, steps: int) -> list[Tensor]:
    """The points of steps along the gradient of ``1/2 x^T A x``, A diagonal."""
    points = []
    for _ in range(steps):
        x.grad = curvature * x.detach()
        optimizer.step()
        points.append(x.detach().clone())
    return points


def start() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))


CURVATURE = torch.tensor([1.0, 0.1], dtype=torch.float64)


def test_by_hand() -> None:
    """One dimension, gradient x, lr 1/2: a = 1, 2/3, 1/2.

    y 1: x = 1/2, z = 1/2, y = 1/2. Then C = -1/2: x = 1/4, z = 1/2 - 3/8 = 1/8, y = 1/8 + 1/16 = 3/16.
    """
    x = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    found = path(ThreeSequenceSGD([x], lr=0.5), x, torch.ones(1), 2)
    assert [float(point) for point in found] == [0.5, 0.1875]


def test_a_constant_share_is_nesterov_momentum() -> None:
    first, second = start(), start()
    ours = path(ThreeSequenceSGD([first], lr=0.3, alpha=0.1), first, CURVATURE, 40)
    torchs = path(torch.optim.SGD([second], lr=0.3, momentum=0.9, nesterov=True), second, CURVATURE, 40)
    torch.testing.assert_close(torch.stack(ours), torch.stack(torchs), rtol=0, atol=1e-13)


def test_it_is_faster_than_plain_steps_on_a_flat_problem() -> None:
    flat = torch.tensor([1.0, 1e-3], dtype=torch.float64)
    first, second = start(), start()
    ours = path(ThreeSequenceSGD([first], lr=1.0), first, flat, 200)[-1]
    plain = path(torch.optim.SGD([second], lr=1.0), second, flat, 200)[-1]
    assert float(flat @ ours.square()) < 0.1 * float(flat @ plain.square())


def test_a_resumed_optimizer_goes_on() -> None:
    x = start()
    optimizer = ThreeSequenceSGD([x], lr=0.3)
    unbroken = path(optimizer, x, CURVATURE, 6)
    y = start()
    half = ThreeSequenceSGD([y], lr=0.3)
    path(half, y, CURVATURE, 3)
    again = ThreeSequenceSGD([y], lr=0.3)
    again.load_state_dict(half.state_dict())
    assert torch.equal(path(again, y, CURVATURE, 3)[-1], unbroken[-1])


@pytest.mark.parametrize("arguments", [{"lr": -1.0}, {"alpha": 0.0}, {"alpha": 1.5}])
def test_arguments_that_cannot_be(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}="):
        ThreeSequenceSGD([start()], **arguments)
