"""Addressed random numbers."""

import math

import pytest
import torch

from lfl.randomness import at_a_time, client_keys, derive_seed, fold, generator, normal, random_bits, uniform


def test_known_values() -> None:
    """Resuming on another machine, or with another version, must draw the same: these numbers are frozen."""
    assert derive_seed(0, "participation", 1) == derive_seed(0, "participation", 1)
    keys = client_keys(torch.tensor([0, 1]), 0, "shuffle", 1)
    assert keys.tolist() == client_keys(torch.tensor([0, 1, 2]), 0, "shuffle", 1)[:2].tolist()
    # SplitMix64 of seed 0 begins with 0xE220A8397B1DCDAF; our bits drop the sign.
    assert random_bits(torch.tensor(0), 1).item() != 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_moments(dtype: torch.dtype) -> None:
    drawn = uniform(client_keys(torch.arange(20), 3), 50_000, dtype).double()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # 1e6 draws: standard errors of mean and variance are 2.9e-4 and 7.5e-5.
    assert abs(drawn.mean() - 0.5) < 1.5e-3
    assert abs(drawn.var() - 1 / 12) < 4e-4
    correlations = torch.corrcoef(drawn) - torch.eye(20)
    assert correlations.abs().max() < 5 / math.sqrt(50_000)
    ordered = drawn[0, :-1] - 0.5, drawn[0, 1:] - 0.5
    assert abs((ordered[0] * ordered[1]).mean() * 12) < 5 / math.sqrt(50_000)


def test_bits_are_balanced() -> None:
    bits = random_bits(torch.arange(1000), 100).flatten()
    for position in range(63):
        share = ((bits >> position) & 1).double().mean()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(100_000), position


def test_addresses_differ() -> None:
    ids = torch.arange(1000)
    keys = torch.cat([client_keys(ids, 0, "a", 1), client_keys(ids, 0, "a", 2), client_keys(ids, 1, "a", 1)])
    assert len(keys.unique()) == 3000
    assert len(fold(keys, 5).unique()) == 3000
    assert not torch.equal(fold(keys, 5), fold(keys, 6))
    assert not torch.equal(torch.rand(3, generator=generator(0, 1)), torch.rand(3, generator=generator(0, 2)))


def test_normal_numbers_are_normal() -> None:
    """1e6 draws: mean, variance, the fourth moment 3 (whose draws have variance 96), and both tails; 5 errors."""
    drawn = normal(client_keys(torch.arange(20), 0, "normal"), 50_000, torch.float64)
    assert drawn.shape == (20, 50_000)
    count = drawn.numel()
    assert abs(drawn.mean()) < 5 / math.sqrt(count)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / count)
    assert abs(drawn.pow(4).mean() - 3) < 5 * math.sqrt(96 / count)
    for sign in (1, -1):
        share = (sign * drawn > 3).double().mean()
        assert abs(share - 1.349898e-3) < 5 * math.sqrt(1.35e-3 / count)
    correlations = torch.corrcoef(drawn) - torch.eye(20)
    assert correlations.abs().max() < 5 / math.sqrt(50_000)
    assert normal(client_keys(torch.arange(2), 0), 3).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_in_pieces_are_those_at_once(dtype: torch.dtype) -> None:
    keys = client_keys(torch.arange(3), 1)
    whole = uniform(keys, 100_000, dtype)
    assert torch.equal(torch.cat([uniform(keys, 70_000, dtype), uniform(keys, 30_000, dtype, 70_000)], dim=1), whole)
    assert 1 <= at_a_time(keys, 100_000) < 100_000
    assert at_a_time(keys, 0) >= 1
