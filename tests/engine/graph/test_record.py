"""Listing the operations of a step."""

import torch
from recordings import NOTHING
from torch import Tensor, nn

from lfl.client.step import Extras, StepInput, StepResult
from lfl.engine.graph.record import leaves_of, record

ROW = torch.tensor([[1.0, 2.0]])


def run(recorded, *arguments: Tensor | float) -> list[Tensor]:
    recorded.recompile()
    return recorded(*arguments)


def test_leaves_are_parameters_and_the_tensors_of_the_input_in_order() -> None:
    tensors = [torch.tensor([float(number)]) for number in range(6)]
    extras = Extras({"b": tensors[3]}, {"a": tensors[4]})
    input = StepInput({"x": (tensors[1],)}, keys=tensors[2], anchor=tensors[5], extras=extras, number=9)
    assert [leaf.item() for leaf in leaves_of(tensors[0], input)] == [0.0, 1.0, 2.0, 5.0, 3.0, 4.0]


def test_results_in_order_and_the_names_of_what_is_logged() -> None:
    def step(params: Tensor, input: StepInput) -> StepResult:
        return StepResult(params * input.batch, params.sum(1), {"b": params[:, 1], "a": input.batch.sum()})

    input = NOTHING._replace(batch=torch.tensor([[3.0, 4.0]]))
    recorded, names = record(step, ROW, input)
    assert names == ("b", "a")
    results = run(recorded, *leaves_of(10 * ROW, input))
    assert [result.tolist() for result in results] == [[[30.0, 80.0]], [30.0], [20.0], 7.0]


def test_no_result_is_an_argument_or_a_constant() -> None:
    constant = nn.Parameter(torch.ones(1, 2), requires_grad=False)
    params = ROW.clone()
    recorded, _ = record(lambda p, i: StepResult(p.view(1, 2), constant[0], {"p": p[0]}), params, NOTHING)
    for result in run(recorded, *leaves_of(params, NOTHING)):
        result.zero_()
    assert torch.equal(params, ROW)
    assert constant.tolist() == [[1.0, 1.0]]


def test_a_descent_moves_the_parameters_instead_of_returning_gradients() -> None:
    recorded, _ = record(lambda p, i: StepResult(3 * p, p.sum(1), {}), ROW, NOTHING, descend=True)
    params = ROW.clone()
    (losses,) = run(recorded, *leaves_of(params, NOTHING), -0.5)
    assert losses.tolist() == [3.0]
    assert params.tolist() == [[-0.5, -1.0]]


def test_a_recording_shows_the_step_number_zero() -> None:
    seen = []

    def step(params: Tensor, input: StepInput) -> StepResult:
        seen.append(input.number)
        return StepResult(params * 2, params.sum(1), {})

    record(step, ROW, NOTHING._replace(number=7))
    assert seen == [0]
