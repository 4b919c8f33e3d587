"""The step of plain SGD as part of the recorded step: equal to rounding, whatever the gradient is made of."""

from pathlib import Path

import pytest
import torch
from recordings import NOTHING, both
from torch import Tensor, nn
from torch.func import functional_call

from lfl.client.layout import ParameterLayout
from lfl.client.step import StepInput, StepResult
from lfl.engine.graph.traced import TracedStep, TraceError


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_plain_sgd_is_part_of_the_recorded_step(engine: str, tmp_path: Path) -> None:
    """A product of matrices is added to the parameters by the multiplication: rounding, some 1e-16 a step."""
    runs = both("fedavg", tmp_path, engine=engine)
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-12)
    assert not torch.equal(runs[1].server.vector, runs[0].server.vector)
    assert runs[0].summary.last("train_acc") == runs[1].summary.last("train_acc")
    assert runs[0].summary.last("train/loss")[0] == pytest.approx(runs[1].summary.last("train/loss")[0], abs=1e-12)


class Net(nn.Module):
    """Gradients of every kind: convolution, matrix product, its transposed, two uses of one weight, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(1, 3, 3), nn.MaxPool2d(2)
        self.linear = nn.Linear(27, 4)
        self.turned = nn.Parameter(torch.randn(4, 5, dtype=torch.float64))
        self.twice = nn.Parameter(torch.randn(5, 5, dtype=torch.float64))
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(self.pool(self.conv(x).relu()).flatten(1)).relu() @ self.turned
        return self.scale * (hidden @ self.twice).tanh() @ self.twice


def test_descent_equals_a_step_on_the_gradient() -> None:
    torch.manual_seed(0)
    net, x, y = Net().double(), torch.rand(6, 1, 8, 8, dtype=torch.float64), torch.randint(5, (6,))
    layout = ParameterLayout.of_parameters(net)

    def step(params: Tensor, input: StepInput) -> StepResult:
        x, y = input.batch
        flat = params.detach().reshape(-1).requires_grad_()
        loss = functional_call(net, layout.views(flat), (x,)).log_softmax(1)[torch.arange(6), y].neg().mean()
        (gradient,) = torch.autograd.grad(loss, flat)
        return StepResult(gradient.unsqueeze(0), loss.detach().unsqueeze(0), {"norm": flat.detach().norm()})

    params = layout.flatten({name: p.detach() for name, p in net.named_parameters()}).unsqueeze(0)
    traced, moved, input = TracedStep(step), params.clone(), NOTHING._replace(batch=(x, y))
    for rate in (0.5, 0.25, 0.1):  # the rate is no constant of the recorded step
        gradients, losses, logs = step(moved, input)
        expected = moved - rate * gradients
        found, logged = traced.descend(rate, moved, input)
        torch.testing.assert_close(moved, expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(found, losses, rtol=0, atol=1e-14)
        torch.testing.assert_close(logged["norm"], logs["norm"], rtol=0, atol=1e-14)  # of the parameters before


@pytest.mark.parametrize("first", ["left", "right"])
def test_a_product_of_parameters_descends(first: str) -> None:
    """The gradient of one factor is a product with the other, which must not have been moved by then."""
    torch.manual_seed(0)
    shapes = {"left": torch.Size((6, 2)), "right": torch.Size((2, 5))}
    names = sorted(shapes, reverse=first == "right")
    layout = ParameterLayout(tuple(names), tuple(shapes[name] for name in names), torch.float64)

    def step(params: Tensor, input: StepInput) -> StepResult:
        flat = params.detach().reshape(-1).requires_grad_()
        parts = layout.views(flat)
        loss = (input.batch + parts["left"] @ parts["right"]).square().sum()
        (gradient,) = torch.autograd.grad(loss, flat)
        return StepResult(gradient.unsqueeze(0), loss.detach().unsqueeze(0), {"first": flat.detach()[0]})

    params, target = torch.randn(1, layout.dim, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    input, before = NOTHING._replace(batch=target), params.clone()
    expected = params - 0.01 * step(params, input).gradients
    _, logs = TracedStep(step).descend(0.01, params, input)
    torch.testing.assert_close(params, expected, rtol=0, atol=1e-15)
    assert logs["first"] == before[0, 0]  # a parameter is logged as it was before the step


def test_gradients_that_are_parameters_descend() -> None:
    """The halves of ``params`` change places in the gradient: none is moved before the other is read."""

    def step(params: Tensor, input: StepInput) -> StepResult:
        return StepResult(torch.cat([params[:, 2:], params[:, :2]], dim=1), params.sum(1), {})

    params = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    TracedStep(step).descend(0.5, params, NOTHING)
    assert params.tolist() == [[-0.5, 0.0, 2.5, 3.0]]


def test_a_constant_gradient_descends() -> None:
    def step(params: Tensor, input: StepInput) -> StepResult:
        flat = params.detach().requires_grad_()
        (gradients,) = torch.autograd.grad(flat.sum(), flat)
        return StepResult(gradients, flat.detach().sum(1), {})

    traced, params = TracedStep(step), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(3):
        traced.descend(0.5, params, NOTHING)
    assert params.tolist() == [[-0.5, 0.5], [1.5, 2.5]]


def test_a_wrong_descent_is_refused() -> None:
    calls = []

    def step(params: Tensor, input: StepInput) -> StepResult:
        calls.append(0)
        return StepResult(params * len(calls), params.sum(1), {})

    with pytest.raises(TraceError):
        TracedStep(step).descend(0.1, torch.ones(1, 3), NOTHING)
