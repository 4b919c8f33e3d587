"""Functions of steps by hand: recorded or not, timed, watched, and what is kept of a step that fails."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lfl.client.schedule import BatchPlan
from lfl.client.step import LocalStep, StepBatch, StepInput, StepResult
from lfl.engine.graph.traced import TracedStep
from lfl.engine.steps import Descents, StepFunctions

INPUT = StepInput(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64), torch.zeros(3))


def square(params: Tensor, input: StepInput) -> StepResult:
    """The loss is half the squared norm: the gradient is the parameters themselves."""
    return StepResult(params.clone(), params.square().sum(dim=1) / 2, {"norm": params.norm(dim=1)})


def failing(params: Tensor, input: StepInput) -> StepResult:
    raise ValueError("no step")


def exhausted(params: Tensor, input: StepInput) -> StepResult:
    raise torch.OutOfMemoryError


class Watch:
    """Counts what is compared; every second step is due."""

    def __init__(self) -> None:
        self.steps, self.checked = 0, list[Any]()

    def is_due(self) -> bool:
        self.steps += 1
        return self.steps % 2 == 0

    def check(self, phase: int, params: Tensor, input: StepInput, result: StepResult) -> None:
        self.checked.append((phase, result.losses.tolist()))

    def check_descent(
        self, phase: int, before: Tensor, after: Tensor, rate: float, input: StepInput, result: StepResult
    ) -> None:
        self.checked.append((phase, before.tolist(), after.tolist(), rate, result.losses.tolist()))


def functions(step: Any = square, num_phases: int = 1) -> StepFunctions:
    return StepFunctions(step, step, step, num_phases)


def test_steps_are_computed_plainly_until_they_are_recorded() -> None:
    steps = functions(num_phases=2)
    assert (steps.are_recorded, steps.of_phases, steps.whole) == (False, [square, square], square)
    steps.record(patience=2)
    assert (steps.are_recorded, steps.compiles, steps.patience) == (True, False, 2)
    kinds = {type(function) for function in (*steps.of_phases, steps.whole)}
    assert kinds == {TracedStep}
    # Each holds what it has recorded, and which parameters are frozen there.
    assert len({id(function) for function in (*steps.of_phases, steps.whole)}) == 3
    gradients, losses, logs = steps.compute(1, torch.tensor([[3.0, 0.0, 4.0]]), INPUT)
    assert (gradients.tolist(), losses.tolist(), logs["norm"].tolist()) == ([[3.0, 0.0, 4.0]], [12.5], [5.0])


def test_times_are_kept_for_who_wants_them() -> None:
    steps = functions()
    steps.record()
    params = torch.ones(1, 3)
    steps.compute(0, params, INPUT)
    steps.times = []
    for _ in range(3):  # of a recording the second and the fourth call are compared, the third is replayed alone
        steps.compute(0, params, INPUT)
    assert [time.is_replayed for time in steps.times] == [False, True, False]
    assert all(time.seconds > 0 for time in steps.times)


def test_a_descent_is_in_place_and_watched_from_what_was_before() -> None:
    steps, watch = functions(), Watch()
    steps.record()
    steps.watch = watch  # type: ignore[assignment]
    params = torch.tensor([[2.0, 4.0, 0.0]])
    for _ in range(2):
        losses, logs = steps.descend(0, 0.5, params, INPUT)
    assert params.tolist() == [[0.5, 1.0, 0.0]]
    assert losses.tolist() == [2.5]
    assert logs["norm"].item() == pytest.approx(5**0.5)
    assert watch.checked == [(0, [[1.0, 2.0, 0.0]], [[0.5, 1.0, 0.0]], 0.5, [2.5])]


@pytest.mark.parametrize("descends", [False, True])
def test_a_failed_step_is_kept_unless_memory_was_short(descends: bool) -> None:
    params = torch.ones(1, 3)
    for step, error, is_kept in ((failing, ValueError, True), (exhausted, torch.OutOfMemoryError, False)):
        steps = functions(step)
        if descends:
            steps.record()
        with pytest.raises(error) as caught:
            steps.descend(0, 0.5, params, INPUT) if descends else steps.compute(0, params, INPUT)
        assert (steps.failure is not None) == is_kept
        if steps.failure is not None:
            assert (steps.failure.error, steps.failure.phase, steps.failure.params) == (caught.value, 0, params)


def test_descents_of_a_width_are_those_whose_batches_all_have_it() -> None:
    def step(*widths: int) -> LocalStep:
        indices = [torch.zeros(1, width, dtype=torch.int64) for width in widths]
        plans = [BatchPlan(0, 2, slice(row, row + 1), of_row, None, 1.0) for row, of_row in enumerate(indices)]
        batches = [StepBatch(plan, None, INPUT.keys, {}) for plan in plans]
        return LocalStep(0, 0, 2, torch.zeros(3), batches, {})

    assert Descents(width=0).include(step(2, 3))
    assert Descents(width=3).include(step(3, 3))
    assert not Descents(width=3).include(step(3, 2))
