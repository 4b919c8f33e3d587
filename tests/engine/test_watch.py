"""One step of a cohort is compared, and a step that came out wrong is kept as it was."""

import pytest
import torch
from torch import Tensor
from worlds import mlp

from lfl.client.model import ClientModel
from lfl.client.step import StepInput
from lfl.engine.vectorized import vectorized_step
from lfl.engine.watch import StepSample, StepWatch
from lfl.engine.witness import Difference
from lfl.round import Cohort, Round


def padded_step() -> tuple[Tensor, StepInput]:
    """Three clients with 2, 1 and 0 examples."""
    batch = (
        torch.randn(3, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[0, 1], [2, 3], [1, 1]]),
    )
    weights = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]])
    params = ClientModel(mlp()).flat_parameters().repeat(3, 1)
    return params, StepInput(batch, torch.arange(3), params[0].clone(), weights=weights)


def shapes(sample: StepSample, together: bool, padded: bool) -> list[tuple[int, int]]:
    return [tuple(input.batch[1].shape) for _, input in sample.as_taken(together, padded)]


def test_a_sample_is_taken_as_a_path_takes_it() -> None:
    params, input = padded_step()
    sample = StepSample(0, params, input)
    assert shapes(sample, together=True, padded=True) == [(3, 2)]
    assert shapes(sample, together=True, padded=False) == [(1, 2), (1, 1)]
    assert shapes(sample, together=False, padded=False) == [(1, 2), (1, 1)]
    even = StepSample(0, params, input._replace(weights=None))
    assert shapes(even, together=True, padded=False) == [(3, 2)]
    assert shapes(even, together=False, padded=False) == [(1, 2)] * 3


def test_a_sample_keeps_its_parameters() -> None:
    params, input = padded_step()
    sample = StepSample(0, params, input)
    params.zero_()
    ((kept, _),) = sample.as_taken(together=True, padded=True)
    assert bool(kept.any())


def test_one_step_of_a_cohort_is_due_and_a_wrong_one_is_kept() -> None:
    model, (params, input) = ClientModel(mlp()), padded_step()
    ids = torch.arange(3)
    round = Round(4, ids, params[0], ids, ids)
    cohort = Cohort(round, ids, torch.full((3,), 2), torch.full((3,), 5), params, torch.zeros(3, 0))
    watch = StepWatch(model, [None], 0, cohort)
    assert sorted(watch.is_due() for _ in range(7)) == [False] * 6 + [True]
    with model.recording():
        result = vectorized_step(model, params, input)
    watch.check(0, params, input, result)
    watch.check_descent(0, params, params - 0.1 * result.gradients, 0.1, input, result)
    with pytest.raises(Difference) as caught:
        watch.check(0, params, input, result._replace(gradients=result.gradients + 1))
    assert isinstance(caught.value.sample, StepSample)
    with pytest.raises(Difference):
        watch.check_descent(0, params, params + 1, 0.1, input, result)
