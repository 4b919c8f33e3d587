"""Recorded steps: the same bits, and a refusal where recording would be wrong."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import cnn, mlp, ragged_data, train
from methods import METHODS, train_method
from torch import Tensor, nn
from torch.func import functional_call

from lfl.callbacks import Scaffold
from lfl.client.layout import ParameterLayout
from lfl.client.step import StepInput, StepResult
from lfl.data import FederatedDataModule, IIDPartitioner, RandomCrop
from lfl.engine import LocalPhase
from lfl.engine.graph.compiled import CompiledStep
from lfl.engine.graph.traced import TracedStep, TraceError
from lfl.models import CifarResNet, Classifier

NOTHING = StepInput(batch=(), keys=torch.zeros(1, dtype=torch.int64), anchor=torch.zeros(1))

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


def even_data(**options: Any) -> FederatedDataModule:
    """15 examples a client in batches of 5: recording takes about a second a shape, and there is one."""
    return ragged_data(partitioner=IIDPartitioner(), **options)


def both(method: str, folder: Path, **options: Any) -> list[Any]:
    """The same run without and with recorded steps."""
    assert method in METHODS
    return [
        train_method(
            method,
            folder,
            cnn(dropout=0.3),
            even_data(train_transforms=[RandomCrop(1)]),
            trace_steps=trace,
            **options,
        )
        for trace in (False, True)
    ]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("method", ["scaffold-1", "ssf-layerwise", "fl-ssvrg"])
def test_the_same_bits(method: str, engine: str, tmp_path: Path) -> None:
    runs = both(method, tmp_path, engine=engine, precision="32-true")
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert runs[0].summary.last("train/loss") == runs[1].summary.last("train/loss")
    assert runs[0].summary.last("train_acc") == runs[1].summary.last("train_acc")


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_plain_sgd_is_part_of_the_recorded_step(engine: str, tmp_path: Path) -> None:
    """A product of matrices is added to the parameters by the multiplication: rounding, some 1e-16 a step."""
    runs = both("fedavg", tmp_path, engine=engine)
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-12)
    assert not torch.equal(runs[1].server.vector, runs[0].server.vector)
    assert runs[0].summary.last("train_acc") == runs[1].summary.last("train_acc")
    assert runs[0].summary.last("train/loss")[0] == pytest.approx(runs[1].summary.last("train/loss")[0], abs=1e-12)


def test_a_step_that_reads_more_than_its_arguments_is_refused(tmp_path: Path) -> None:
    module = mlp()
    calls = []
    plain = module.training_step

    def training_step(batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        calls.append(0)
        return plain(batch, batch_idx) * (1 + 0.1 * len(calls))

    module.training_step = training_step
    with pytest.raises(TraceError, match="depends on something besides its batch and parameters"):
        train([], tmp_path, module, even_data(), engine="vectorized", trace_steps=True)


def test_every_shape_is_recorded_and_checked_once() -> None:
    calls = []

    def step(x: Tensor, input: StepInput) -> StepResult:
        calls.append(tuple(x.shape))
        return StepResult(x.sin() + 1, x.sum(), {"mean": x.mean()})

    traced = TracedStep(step)
    for size in (3, 4, 3, 3, 4, 4, 3):
        x = torch.rand(size)
        gradients, losses, logs = traced(x, NOTHING)
        assert torch.equal(gradients, x.sin() + 1)
        assert torch.equal(losses, x.sum())
        assert torch.equal(logs.pop("mean"), x.mean())
        assert not logs
    # Recorded, computed, and compared: three calls a shape, however often it comes.
    assert sorted(calls) == [(3,)] * 3 + [(4,)] * 3


@pytest.mark.parametrize("kind", [TracedStep, pytest.param(CompiledStep, marks=needs_compiler)])
def test_results_may_be_written_into_and_what_the_module_holds_may_change(kind: type[TracedStep]) -> None:
    held = torch.tensor([1.0, 2.0])

    def step(x: Tensor, input: StepInput) -> StepResult:
        # A constant, an argument and a view of one: none of them may be handed out as it is.
        return StepResult(torch.ones_like(x) * 3, x.view(2), {"held": x * (held + 1)})

    traced = kind(step)
    x = torch.tensor([5.0, 6.0])
    for round_number in range(5):
        held.fill_(float(round_number))
        gradients, losses, logs = traced(x, NOTHING)
        assert gradients.tolist() == [3.0, 3.0]
        assert losses.tolist() == [5.0, 6.0]
        assert logs["held"].tolist() == [5.0 * (round_number + 1), 6.0 * (round_number + 1)]
        if kind is CompiledStep or round_number > 1:  # until then a recorded step hands out the step's own results
            gradients.zero_()
            losses.zero_()
        assert x.tolist() == [5.0, 6.0]


def test_a_module_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot record the step of Classifier: it changes the buffer 'backbone"):
        train([], tmp_path, Classifier(CifarResNet(8, in_channels=1)), even_data(), trace_steps=True)


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


def test_passes_over_all_examples_are_recorded_apart(tmp_path: Path) -> None:
    """A phase computes no gradient of what it freezes; SCAFFOLD's option I asks for one of all parameters."""
    methods = [Scaffold("I"), Scaffold("I")]
    for method, trace in zip(methods, (False, True), strict=True):
        train(
            [method],
            tmp_path,
            mlp(),
            even_data(batch_size=15),  # one batch an epoch: the shape of the whole data
            local_phases=[LocalPhase(parameters=["*bias"])],
            trace_steps=trace,
        )
    assert methods[0].control.ne(0).all()
    torch.testing.assert_close(methods[1].control, methods[0].control, rtol=0, atol=1e-12)
