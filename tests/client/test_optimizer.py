"""The local optimizer on rows."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from worlds import mlp, train

from lfl.callbacks import (
    Scaffold,
)
from lfl.client.layout import ParameterLayout
from lfl.client.optimizer import LocalOptimizer, movement_scale


@given(
    steps=st.integers(1, 12),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    dampening=st.sampled_from([0.0, 0.3]),
    nesterov=st.booleans(),
    decay=st.sampled_from([1.0, 0.8]),
)
def test_movement_scale_is_what_torch_does(
    steps: int, momentum: float, dampening: float, nesterov: bool, decay: float
) -> None:
    """Feed a constant unit gradient to torch's SGD."""
    if nesterov and (momentum == 0 or dampening):
        nesterov = False
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    sgd = torch.optim.SGD([parameter], lr=0.1, momentum=momentum, dampening=dampening, nesterov=nesterov)
    rates = []
    for step in range(steps):
        rates.append(0.1 * decay**step)
        sgd.param_groups[0]["lr"] = rates[-1]
        parameter.grad = torch.ones_like(parameter)
        sgd.step()
    assert movement_scale(sgd.param_groups, rates) == pytest.approx(-parameter.item(), rel=1e-12)


def test_momentum_closed_form() -> None:
    """``||a||_1 = (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho)``, times eta."""
    groups = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9).param_groups
    closed = (6 - 0.9 * (1 - 0.9**6) / 0.1) / 0.1
    assert movement_scale(groups, [0.1] * 6) == pytest.approx(0.1 * closed)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "asgd": lambda p: torch.optim.ASGD(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_step_as_clients_would_alone(name: str) -> None:
    """3 clients take 4, 2 and 1 steps with given gradients; each equals torch on the module's own parameters."""
    steps = [4, 2, 1]
    module = mlp().double()
    module.configure_optimizers = lambda: OPTIMIZERS[name](module.parameters())
    layout = ParameterLayout.of_parameters(module)
    start = layout.flatten({n: p.detach() for n, p in module.named_parameters()})
    gradients = torch.randn(4, 3, layout.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = start.repeat(3, 1)
    optimizer = LocalOptimizer(module, layout, values, rates=None)
    for step in range(4):
        active = sum(s > step for s in steps)
        optimizer.narrow(active)
        optimizer.step(gradients[step, :active])
    for client, count in enumerate(steps):
        alone = alone_after(module, layout, start, gradients[:count, client])
        torch.testing.assert_close(values[client], alone, rtol=0, atol=1e-14)


def alone_after(module: nn.Module, layout: ParameterLayout, start: Tensor, gradients: Tensor) -> Tensor:
    for name, view in layout.views(start.clone()).items():
        module.get_parameter(name).data = view
    optimizer = module.configure_optimizers()
    for gradient in gradients:
        for name, view in layout.views(gradient).items():
            module.get_parameter(name).grad = view.clone()
        optimizer.step()
    return layout.flatten({n: p.detach() for n, p in module.named_parameters()})


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_other_rows_get_an_optimizer_of_the_same_settings(name: str) -> None:
    """At the round's rates, and of the same phase; neither has anything of the other's state."""
    makers = {
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    }
    module = mlp().double()
    module.configure_optimizers = lambda: makers[name](module.parameters())
    layout = ParameterLayout.of_parameters(module)
    head = layout.select(["*.head.*"])
    draws = torch.Generator().manual_seed(0)
    start, gradients = (torch.randn(2, layout.dim, generator=draws, dtype=torch.float64) for _ in range(2))
    values, other_values, expected = start.clone(), start.clone(), start.clone()
    names = [n for n in layout.names if ".head." in n]
    first = LocalOptimizer(module, layout, values, [0.05], trained=names)
    first.step(gradients)
    other = first.for_rows(other_values)
    alone = LocalOptimizer(module, layout, expected, [0.05], trained=names)
    for _ in range(2):
        first.step(gradients)
        for optimizer in (other, alone):
            optimizer.step(-gradients)
    assert torch.equal(other_values, expected)
    assert torch.equal(other_values[:, ~head], start[:, ~head])
    assert not torch.equal(values, other_values)


def test_groups_are_few_tensors_however_many_layers() -> None:
    module = mlp()
    layout = ParameterLayout.of_parameters(module)
    values = torch.zeros(2, layout.dim)
    optimizer = LocalOptimizer(module, layout, values, rates=None)
    assert [p.shape for p in optimizer.optimizer.param_groups[0]["params"]] == [(2, layout.dim)]


def test_weight_decay_by_group() -> None:
    module = mlp()
    module.configure_optimizers = lambda: torch.optim.SGD(
        [
            {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": 0.5},
            {"params": [p for p in module.parameters() if p.ndim == 1]},
        ],
        lr=0.1,
    )
    layout = ParameterLayout.of_parameters(module)
    decay = LocalOptimizer(module, layout, torch.zeros(1, layout.dim), rates=None).weight_decay()
    expected = [0.5 * torch.ones(s.numel()) if len(s) > 1 else torch.zeros(s.numel()) for s in layout.shapes]
    assert torch.equal(decay, torch.cat(expected))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.AdamW(p, weight_decay=0.1), "AdamW decays the weights by itself"),
        (lambda p: torch.optim.LBFGS(p), "LBFGS evaluates the loss several times a step"),
        (lambda p: torch.optim.Adagrad(p), "Adagrad starts with a state of its own"),
        (
            lambda p: torch.optim.SGD([{"params": q, "lr": 0.1 + i} for i, q in enumerate(p)]),
            "must share their settings",
        ),
    ],
)
def test_what_has_no_meaning_on_coordinates(make, message: str) -> None:
    module = mlp()
    module.configure_optimizers = lambda: make(module.parameters())
    layout = ParameterLayout.of_parameters(module)
    with pytest.raises(ValueError, match=message):
        LocalOptimizer(module, layout, torch.zeros(1, 5), rates=None, in_coordinates=True)


def test_scale_needs_sgd() -> None:
    module = mlp()
    module.configure_optimizers = lambda: torch.optim.Adam(module.parameters())
    layout = ParameterLayout.of_parameters(module)
    with pytest.raises(ValueError, match="needs SGD with one set of settings; the optimizer is Adam"):
        LocalOptimizer(module, layout, torch.zeros(1, layout.dim), rates=None).movement_scales([3])


def test_a_gradient_that_is_climbed_tells_nothing_by_movement(tmp_path: Path) -> None:
    module = mlp()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.1, maximize=True)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="`maximize=True` turns around"):
        train([Scaffold()], tmp_path, module)
