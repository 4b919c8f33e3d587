"""One local step as values."""

import torch

from lfl.client.schedule import BatchPlan
from lfl.client.step import NO_EXTRAS, ClientStep, Extras, LocalStep, StepBatch, StepInput, at_row

X, KEYS = torch.zeros(3), torch.tensor([7, 8])


def test_an_input_is_its_tensors_but_for_its_number() -> None:
    plain = StepInput(torch.ones(2, 1), KEYS, X, number=5)
    assert len(plain.tensors) == 4
    assert StepInput(*plain.tensors) == plain._replace(number=0)
    weighted = plain._replace(weights=torch.ones(2, 1))
    assert StepInput(*weighted.tensors).weights is weighted.weights


def test_a_batch_sees_the_rows_of_its_clients() -> None:
    plan = BatchPlan(0, 3, slice(1, 3), torch.zeros(2, 1, dtype=torch.int64), None, 1)
    part = StepBatch(plan, torch.ones(2, 1), KEYS, {})
    step = LocalStep(number=4, phase=0, active=3, anchor=X, batches=[part], loss_rows={}, log=print)
    assert step.input_of(part).extras is NO_EXTRAS
    assert step.input_of(part).number == 4
    other = step.with_loss_rows({"c": torch.tensor([1.0, 2.0, 3.0])})
    assert other.input_of(part).extras.rows["c"].tolist() == [2.0, 3.0]
    assert (other.log, step.loss_rows) == (None, {})


def test_the_same_step_on_other_batches() -> None:
    plan = BatchPlan(0, 3, slice(1, 3), torch.zeros(2, 1, dtype=torch.int64), None, 1)
    first, second, third = (StepBatch(plan, torch.full((2, 1), i), KEYS + i, {}) for i in range(3))
    step = LocalStep(4, 0, 3, X, [first], {}, log=print, others=[[second], [third]])
    for draw, part in ((1, second), (2, third)):
        other = step.other(draw)
        assert other.batches == [part]
        assert (other.number, other.active, other.log) == (4, 3, None)
        assert torch.equal(other.input_of(part).keys, KEYS + draw)
    assert step.batches == [first]
    assert step.log is print


def test_a_term_joins_parameters_once_and_reads_x_without_gradient() -> None:
    asked = []

    def params() -> torch.Tensor:
        asked.append(0)
        return torch.full((3,), 2.0, requires_grad=True)

    extras = Extras({"layer": torch.ones(1)}, {"row": torch.zeros(1)})
    parts: list[str] = []

    def forward(params: torch.Tensor, inputs: tuple[float], part: str) -> torch.Tensor:
        parts.append(part)
        return (params * inputs[0]).sum()

    client = ClientStep(None, X, {}, extras, params, forward, lambda *_: None)
    assert client.call(5.0).item() == 30.0
    assert client.call(1.0).requires_grad
    assert len(asked) == 1
    assert not client.call_global(5.0, part="head").requires_grad
    assert parts == ["", "", "head"]
    assert (client.global_features, client.rows) == tuple(extras)


def test_features_of_rows_have_names_that_submodules_have_not() -> None:
    assert at_row("moon/previous", "backbone.features") == "moon/previous:backbone.features"
    assert at_row("a", "layer") != at_row("b", "layer") != "layer"
