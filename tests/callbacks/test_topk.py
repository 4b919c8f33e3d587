"""Top-k with error feedback: which entries are kept, what is remembered, and rounds by hand."""

import math
from pathlib import Path

import pytest
import torch
from two_clients import path_of, two_clients
from worlds import train

from lfl.callbacks import FederatedCallback, Proximal, TopK
from lfl.callbacks.topk import count_entries, keep_largest


def test_fedprox_with_top_k_and_feedback_by_hand(tmp_path: Path) -> None:
    """mu = 1, k = 1, two steps ``y <- y - (g(y) + y - x) / 2``; e_i is fed back in round 2.

    Client 1, centre (4, -3): the first step goes half way, where gradient and proximal term cancel: delta_1 = (centre -
    x) / 2. Client 2: the first step reaches y_2 = 2, the second goes half way back: delta_2 = (0, 2 - x_2) / 2.

    1. (2, -1.5): C = (2, 0), e_1 = (0, -1.5). (0, 1): C = (0, 1), e_2 = 0. Mean (1, .5) = x.
    2. (1.5, -1.75) + e_1 = (1.5, -3.25): C = (0, -3.25), e_1 = (1.5, 0). (0, .75): C = (0, .75). Mean (0, -1.25):
       x = (1, -.75).
    """
    path, trainer = path_of([Proximal(mu=1.0), TopK(1)], tmp_path, rounds=2, data=two_clients((4.0, -3.0)), steps=2)
    assert path == [[1.0, 0.5], [1.0, -0.75]]
    assert trainer.store.gather("top-k/error", torch.arange(2)).tolist() == [[1.5, 0.0], [0.0, 0.0]]


def test_topk_keeps_the_largest_and_remembers_the_rest(tmp_path: Path) -> None:
    rows = torch.tensor([[3.0, -5.0, 5.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert keep_largest(rows, 1).tolist() == [[0.0, -5.0, 0.0, 0.0], [0.0] * 4]  # a tie: the lowest index
    assert keep_largest(rows, 3).tolist()[0] == [3.0, -5.0, 5.0, 0.0]

    class Identity(FederatedCallback):
        """Sum of what was sent plus what is kept equals the sum of the updates."""

        def __init__(self) -> None:
            self.came, self.sent = 0.0, 0.0

        def on_cohort_end(self, cohort) -> None:
            self.came += cohort.delta.sum(dim=0)

        def on_aggregate(self, round) -> None:
            self.sent += round.update * round.num_reported

    identity = Identity()
    trainer = train([TopK(0.1), identity], tmp_path, max_rounds=4)
    kept = trainer.store.gather("top-k/error", torch.arange(8)).sum(dim=0)
    torch.testing.assert_close(identity.sent + kept, identity.came, rtol=0, atol=1e-12)
    k = math.ceil(0.1 * trainer.layout.dim)
    assert trainer.ledger.up_bits == {"update": 5 * k * (64 + 10)}  # D = 832: 10 bits an index
    whole, plain = train([TopK(1.0)], tmp_path), train([], tmp_path)
    assert torch.equal(whole.server.vector, plain.server.vector)
    with pytest.raises(ValueError, match="`k=0` must be at least 1"):
        TopK(0)


def test_a_share_is_rounded_up_as_it_is_written() -> None:
    """0.07 * 100 is 7.000000000000001 in floating-point numbers."""
    ids = torch.zeros(1, dtype=torch.int64)
    assert [count_entries(share, ids, 100) for share in (0.07, 0.071, 0.001)] == [7, 8, 1]
