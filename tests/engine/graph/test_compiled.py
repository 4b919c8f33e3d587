"""Compiled steps: the numbers of the step to rounding, or a message that says what to do."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.methods import train_method
from recordings import NOTHING, needs_compiler
from torch import Tensor
from worlds import equal_data, mlp, train

from lfl.client.step import StepInput, StepResult
from lfl.engine.graph.compiled import CompiledStep
from lfl.engine.graph.traced import TraceError


@needs_compiler
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold-1"])
def test_equal_to_rounding(method: str, engine: str, tmp_path: Path) -> None:
    """float64: some 1e-16 a step, over 3 rounds of 3 steps."""
    plain, compiled = (
        train_method(method, tmp_path, mlp(), equal_data(), engine=engine, trace_steps=steps)
        for steps in (False, "compile")
    )
    torch.testing.assert_close(compiled.server.vector, plain.server.vector, rtol=0, atol=1e-12)
    assert compiled.summary.last("train/loss")[0] == pytest.approx(plain.summary.last("train/loss")[0], abs=1e-12)
    assert compiled.summary.last("train_acc") == plain.summary.last("train_acc")
    assert isinstance(compiled.engine.steps.of_phases[0], CompiledStep)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling leaves a recording as it is: what is around the compiler can be tested without one."""
    monkeypatch.setattr(torch, "compile", lambda recorded, **options: recorded)


@pytest.mark.usefixtures("without_kernels")
def test_a_step_that_reads_more_than_its_arguments_is_refused() -> None:
    calls = []

    def step(x: Tensor, input: StepInput) -> StepResult:
        calls.append(0)
        return StepResult(x * len(calls), x.sum(), {})

    with pytest.raises(TraceError, match="depends on something besides its batch and parameters"):
        CompiledStep(step)(torch.ones(3), NOTHING)


@pytest.mark.usefixtures("without_kernels")
def test_many_shapes_are_warned_about_once() -> None:
    compiled = CompiledStep(lambda x, input: StepResult(x * 2, x.sum(), {}))
    for size in range(1, 9):
        assert compiled(torch.ones(size), NOTHING).gradients.tolist() == [2.0] * size
    with pytest.warns(UserWarning, match="has compiled 9 shapes"):
        compiled(torch.ones(9), NOTHING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(10), NOTHING)


def test_what_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(recorded: Any, **options: Any) -> Any:
        def run(*leaves: Tensor) -> None:
            raise RuntimeError("no working C++ compiler\nand much more")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(
        TraceError, match=r"training step \(RuntimeError: no working C\+\+ compiler\).*trace_steps=true"
    ):
        train([], tmp_path, mlp(), equal_data(), trace_steps="compile")


@pytest.mark.parametrize(("entries", "is_refused"), [(1, False), (100, True)])
def test_an_entry_that_jumps_is_no_other_step(entries: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may decide a maximum or a ReLU: 0.05 in 1 of 10,000 ones is 5e-4 of the norm, in 100 of them 5e-3."""

    def jumping(recorded: Any, **options: Any) -> Any:
        def run(x: Tensor, *others: Tensor) -> list[Tensor]:
            gradients, losses = recorded(x, *others)
            gradients[0, :entries] += 0.05
            return [gradients, losses]

        return run

    monkeypatch.setattr(torch, "compile", jumping)
    compiled = CompiledStep(lambda x, input: StepResult(x + 1, x.sum(1) + 1, {}))
    context = pytest.raises(TraceError) if is_refused else nullcontext()
    with context:
        compiled(torch.zeros(1, 10_000), NOTHING)
