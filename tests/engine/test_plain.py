"""A step by the module's own parameters."""

import torch
from worlds import Quadratic

from lfl.client.model import ClientModel
from lfl.client.step import StepInput
from lfl.engine.plain import first_of, plain_features, plain_step


def test_a_step_is_the_gradient_at_the_row() -> None:
    """A (y - b) with A = (2, 4), y = (1, 1), b = (0, 3)."""
    model = ClientModel(Quadratic(2))
    batch = torch.tensor([[[2.0, 4.0]]]), torch.tensor([[[0.0, 3.0]]])
    result = plain_step(model, torch.ones(1, 2), StepInput(batch, torch.zeros(1, dtype=torch.int64), torch.zeros(2)))
    assert result.gradients.tolist() == [[2.0, -8.0]]
    assert result.losses.tolist() == [0.5 * 2 + 0.5 * 4 * 4]


def test_no_features_are_read_where_none_are_wanted() -> None:
    model = ClientModel(Quadratic(2))
    batch = torch.ones(1, 1, 2), torch.ones(1, 1, 2)
    assert plain_features(model, batch, torch.zeros(1, dtype=torch.int64), torch.zeros(2)) == {}


def test_the_first_of_a_nest() -> None:
    assert first_of({"a": (torch.tensor([[1]]),)})["a"][0].tolist() == [1]
