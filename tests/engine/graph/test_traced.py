"""Recorded steps: the same bits, and a refusal where recording would be wrong."""

import os
from pathlib import Path

import pytest
import torch
from recordings import NOTHING, both, needs_compiler
from torch import Tensor
from worlds import equal_data, mlp, train

from lfl.callbacks import Scaffold
from lfl.client.step import StepInput, StepResult
from lfl.engine import LocalPhase
from lfl.engine.graph.compiled import CompiledStep
from lfl.engine.graph.traced import TracedStep, TraceError


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("method", ["scaffold-1", "ssf-layerwise", "fl-ssvrg"])
def test_the_same_bits(method: str, engine: str, tmp_path: Path) -> None:
    runs = both(method, tmp_path, engine=engine, precision="32-true")
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert runs[0].summary.last("train/loss") == runs[1].summary.last("train/loss")
    assert runs[0].summary.last("train_acc") == runs[1].summary.last("train_acc")


def test_a_step_that_reads_more_than_its_arguments_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept in the environment, where no look ahead finds it."""
    module = mlp()
    plain = module.training_step
    monkeypatch.setenv("LFL_TEST_CALLS", "0")

    def training_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        calls = int(os.environ["LFL_TEST_CALLS"])
        os.environ["LFL_TEST_CALLS"] = str(calls + 1)
        return plain(batch, 0) * (1 + 0.1 * calls)

    module.training_step = training_step
    with pytest.raises(TraceError, match="depends on something besides its batch and parameters"):
        train([], tmp_path, module, equal_data(), trace_steps=True)


def test_every_shape_is_recorded_once_and_checked_at_calls_2_4_8() -> None:
    calls = []

    def step(x: Tensor, input: StepInput) -> StepResult:
        calls.append(tuple(x.shape))
        return StepResult(x.sin() + 1, x.sum(), {"mean": x.mean()})

    traced = TracedStep(step)
    replayed = []
    for size in (3, 4, 3, 3, 4, 4, 3, 3):
        x = torch.rand(size)
        gradients, losses, logs = traced(x, NOTHING)
        replayed.append(traced.has_replayed)
        assert torch.equal(gradients, x.sin() + 1)
        assert torch.equal(losses, x.sum())
        assert torch.equal(logs.pop("mean"), x.mean())
        assert not logs
    # Recorded, computed, and compared at the second and the fourth call of each.
    assert sorted(calls) == [(3,)] * 4 + [(4,)] * 3
    assert replayed == [False, False, False, True, False, True, False, True]


def test_a_patient_recording_waits_for_a_shape_to_come_again() -> None:
    calls = []

    def step(x: Tensor, input: StepInput) -> StepResult:
        calls.append("step")
        return StepResult(x.sin() + 1, x.sum(), {})

    def plain(x: Tensor, input: StepInput) -> StepResult:
        calls.append("plain")
        return StepResult(x.sin() + 1, x.sum(), {})

    traced = TracedStep(step, plain, patience=3)
    for size in (3, 4, 3, 3, 4, 3, 3, 3):
        x = torch.rand(size)
        gradients, losses, _ = traced(x, NOTHING)
        assert torch.equal(gradients, x.sin() + 1)
        assert torch.equal(losses, x.sum())
    # The shape (3,): three times plain, then recorded and computed, then compared. (4,) is not recorded.
    assert calls == ["plain"] * 5 + ["step"] * 3


def test_a_descent_that_was_right_at_first_is_seen_to_go_wrong() -> None:
    """Its first call compares a recording with what was recorded."""
    factor = 1.0

    def step(x: Tensor, input: StepInput) -> StepResult:
        return StepResult(x.cos() * factor, x.sum(dim=1), {})

    traced = TracedStep(step)
    traced.descend(0.1, torch.ones(1, 3), NOTHING)
    factor = 2.0
    with pytest.raises(TraceError, match="gives other numbers"):
        traced.descend(0.1, torch.ones(1, 3), NOTHING)


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


def test_passes_over_all_examples_are_recorded_apart(tmp_path: Path) -> None:
    """A phase computes no gradient of what it freezes; SCAFFOLD's option I asks for one of all parameters."""
    methods = [Scaffold("I"), Scaffold("I")]
    for method, trace in zip(methods, (False, True), strict=True):
        train(
            [method],
            tmp_path,
            mlp(),
            equal_data(batch_size=15),  # one batch an epoch: the shape of the whole data
            local_phases=[LocalPhase(parameters=["*bias"])],
            trace_steps=trace,
        )
    assert methods[0].control.ne(0).all()
    torch.testing.assert_close(methods[1].control, methods[0].control, rtol=0, atol=1e-12)
