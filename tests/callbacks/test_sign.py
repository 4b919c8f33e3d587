"""Signs with one magnitude, by hand."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from two_clients import path_of
from worlds import train

from lfl.aggregation import CoordinateMedian
from lfl.callbacks import SSF, Sign, TopK
from lfl.callbacks.compressor import Compressor


def compressed(codec: Compressor, rows: Tensor) -> Tensor:
    ids = torch.arange(len(rows))
    return codec.compress(rows, ids, ids).values


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


def test_votes_by_hand(tmp_path: Path) -> None:
    """Clients move by (4 - x_1, -x_2) / 2 and (0, 2 - x_2); zero votes for +1, and the server's rate is 1.

    1. (2, 0), (0, 2): votes (2, 2): x = (1, 1). 2. (1.5, -.5), (0, 1): votes (2, 0): x = (2, 1).

    Up 2 bits. Down two doubles at first, then a bit a vote and a double.
    """
    path, trainer = path_of([Sign(error_feedback=False, vote="majority")], tmp_path, rounds=2)
    assert path == [[1.0, 1.0], [2.0, 1.0]]
    assert trainer.store.slots == ()
    assert trainer.ledger.up_bits == {"update": 2 * 2}
    assert trainer.ledger.totals == {"up": 2 * 2 * 2, "down": 2 * 128 + 2 * (2 + 64)}
    assert trainer.run.aggregator.weighting == "uniform"


def test_other_steps_than_votes_are_sent_whole(tmp_path: Path) -> None:
    stack = [Sign(error_feedback=False, vote="majority")]
    momentum = {"server_optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)}
    assert train(list(stack), tmp_path, max_rounds=2).ledger.down_bits["model"] < 5 * 832 * 64
    assert train(list(stack), tmp_path, max_rounds=2, **momentum).ledger.down_bits == {"model": 5 * 832 * 64}


def test_refused_votes(tmp_path: Path) -> None:
    vote = Sign(error_feedback=False, vote="majority")
    with pytest.raises(ValueError, match="`error_feedback=True` of Sign has no meaning with `vote=majority`"):
        Sign(vote="majority")
    with pytest.raises(ValueError, match="`vote=majority` of Sign and TopK have no meaning together"):
        train([vote, TopK(0.1)], tmp_path)
    with pytest.raises(ValueError, match="`vote=majority` of Sign is a vote on parameters, but SSF"):
        train([SSF(), vote], tmp_path)
    with pytest.raises(ValueError, match="use a mean, not CoordinateMedian"):
        train([vote], tmp_path, aggregator=CoordinateMedian())
