"""Signs with one magnitude, by hand."""

from pathlib import Path

import torch
from torch import Tensor
from two_clients import path_of

from lfl.callbacks import Sign
from lfl.callbacks.compressor import Compressor
from lfl.round import Cohort


def compressed(codec: Compressor, rows: Tensor) -> Tensor:
    whom = Cohort(None, torch.arange(len(rows)), *[torch.empty(0)] * 4)  # type: ignore[arg-type]
    return codec.compress(whom, rows).values


def test_signs_have_the_mean_magnitude_and_zero_is_positive() -> None:
    rows = torch.tensor([[3.0, -1.0, 0.0, -0.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -1.0, -1.0, -5.0]])
    assert compressed(Sign(), rows).tolist() == [[1.0, -1.0, 1.0, 1.0], [0.0] * 4, [-2.0] * 4]


def test_signs_scale_with_the_update_and_keep_one_magnitude() -> None:
    rows = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(compressed(Sign(), 4 * rows), 4 * compressed(Sign(), rows))
    flat = 0.3 * torch.where(rows < 0, -1.0, 1.0)
    assert torch.equal(compressed(Sign(), flat), flat)
    error = (rows - compressed(Sign(), rows)).square().sum(dim=1)
    torch.testing.assert_close(error, rows.square().sum(dim=1) - rows.abs().sum(dim=1).square() / 1000)


def test_signs_with_feedback_by_hand(tmp_path: Path) -> None:
    """One step moves the clients by (4 - x_1, -x_2) / 2 and (0, 2 - x_2); ``C(a) = |a|_1 / 2 sign(a)``.

    1. (2, 0): C = (1, 1), e_1 = (1, -1). (0, 2): C = (1, 1), e_2 = (-1, 1). Mean (1, 1): x = (1, 1).
    2. (1.5, -.5) + e_1 = (2.5, -1.5): C = (2, -2), e_1 = (.5, .5). (0, 1) + e_2 = (-1, 2): C = (-1.5, 1.5),
       e_2 = (.5, .5). Mean (.25, -.25): x = (1.25, .75).
    """
    path, trainer = path_of([Sign()], tmp_path, rounds=2)
    assert path == [[1.0, 1.0], [1.25, 0.75]]
    assert trainer.store.gather("sign/error", torch.arange(2)).tolist() == [[0.5, 0.5], [0.5, 0.5]]
