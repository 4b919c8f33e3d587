"""Lengths of integer codes, by hand and on average."""

import math

import pytest
import torch

from lfl.callbacks.codes import elias_bits, gaps, golomb_bits, golomb_parameter
from lfl.randomness import client_keys, uniform

MASK = torch.tensor([[False, True, True, False, False, True], [False] * 6])


def test_gaps_are_distances_from_the_mark_before() -> None:
    rows, distances = gaps(torch.cat([MASK, MASK[:1]]))
    assert (rows.tolist(), distances.tolist()) == ([0, 0, 0, 2, 2, 2], [2, 1, 3, 2, 1, 3])
    assert [len(part) for part in gaps(MASK[1:])] == [0, 0]


def test_elias_writes_counts_of_digits_before_digits() -> None:
    """100 has 7 digits, 6 has 3, 2 has 2, 1 ends it: 7 + 3 + 2 + 1. 10^6: 20 + 5 (of 19) + 3 (of 4) + 2 + 1."""
    numbers = torch.tensor([1, 2, 3, 4, 7, 8, 15, 16, 100, 10**6])
    assert elias_bits(numbers).tolist() == [1, 3, 3, 6, 6, 7, 7, 11, 13, 31]


def test_golomb_by_hand() -> None:
    """Gaps 2, 1, 3. With b = 1: quotients of (1, 0, 2) by 2 are 0, 0, 1, and each has a zero and a digit: 2 + 2 + 3."""
    assert golomb_bits(MASK, 1).tolist() == [7, 0]
    assert golomb_bits(MASK, 0).tolist() == [6, 0]  # unary
    assert [golomb_parameter(p) for p in (1.0, 0.6, 0.01)] == [0, 0, 6]


@pytest.mark.parametrize("share", [0.01, 1 / 32, 0.22])
def test_golomb_codes_of_random_positions_have_the_length_of_the_paper(share: float) -> None:
    """A gap costs ``b + 1 / (1 - (1 - p)^(2^b))`` bits on average."""
    parameter = golomb_parameter(share)
    mask = uniform(client_keys(torch.arange(50), "golomb"), 20000) < share
    found = golomb_bits(mask, parameter).double() / mask.sum(dim=1)
    expected = parameter + 1 / (1 - (1 - share) ** 2**parameter)
    assert abs(float(found.mean()) - expected) < 4 * float(found.std()) / math.sqrt(50)
