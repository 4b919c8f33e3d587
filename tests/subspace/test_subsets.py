"""Random subsets of coordinates: sizes, shares, unbiasedness."""

import itertools
import math

import pytest
import torch

from lfl.randomness import client_keys
from lfl.subspace.subsets import check_expected, mark_largest, random_subsets, subset_sizes


def test_the_estimate_is_unbiased_over_all_subsets() -> None:
    """d = 4, l = 2: the mean over all 6 subsets of (d/l) mask g is g; SSVRG's second term needs d/l, not d/l_i."""
    g = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    subsets = [torch.zeros(4).index_fill(0, torch.tensor(s), 1.0).double() for s in itertools.combinations(range(4), 2)]
    mean = torch.stack([4 / 2 * m * g for m in subsets]).mean(dim=0)
    torch.testing.assert_close(mean, g, rtol=0, atol=1e-14)
    misprint = torch.stack([4 / 1 * m * g for m in subsets]).mean(dim=0)  # with l_i = 1
    assert not torch.allclose(misprint, g)


@pytest.mark.parametrize("expected", [1.0, 2.5, 0.25, 6.0])
def test_random_subsets_have_the_expected_size_and_no_favourites(expected: float) -> None:
    """20,000 draws over d = 6: the share of each coordinate is l/d within 5 standard errors."""
    keys = client_keys(torch.arange(20_000), 1)
    masks = random_subsets(keys, torch.full((20_000,), expected, dtype=torch.float64), 6)
    sizes = masks.sum(dim=1)
    assert set(sizes.tolist()) <= {math.ceil(expected) - 1, math.ceil(expected)}
    assert torch.equal(sizes, subset_sizes(keys, torch.full((20_000,), expected).double()))
    share = expected / 6
    error = 5 * math.sqrt(max(share * (1 - share), 1e-12) / 20_000)
    assert ((masks.double().mean(dim=0) - share).abs() <= error).all()


@pytest.mark.parametrize("value", [0.0, -1.0, 7.0, float("nan")])
def test_sizes_that_cannot_be(value: float) -> None:
    with pytest.raises(ValueError, match="must be greater than 0 and at most D=6"):
        check_expected(value, 6, 3)
    with pytest.raises(ValueError, match="lists 2 numbers, but there are 3 clients"):
        check_expected([1.0, 2.0], 6, 3)


def test_the_largest_are_marked_and_of_equal_ones_the_first() -> None:
    values = torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0, -4.0], [0.0] * 6])
    assert mark_largest(values, 2).int().tolist() == [[0, 1, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0]]
    assert mark_largest(values, 4).int().tolist() == [[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]]
    assert bool(mark_largest(values, 6).all())
    assert not bool(mark_largest(values, 0).any())


@pytest.mark.parametrize("size", [1, 7, 150, 299])
def test_the_largest_are_the_first_of_a_stable_sort(size: int) -> None:
    values = torch.randint(0, 40, (5, 300), generator=torch.Generator().manual_seed(size))
    order = values.argsort(dim=1, descending=True, stable=True)[:, :size]
    assert torch.equal(mark_largest(values, size), torch.zeros_like(values, dtype=torch.bool).scatter(1, order, True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_differ_by_rounding_are_equal(dtype: torch.dtype) -> None:
    """A sum in another order: the first of them is marked, whichever came out larger."""
    above = 1 + 4 * torch.finfo(dtype).eps
    for values in ([1.0, above, 0.5], [above, 1.0, 0.5]):
        assert mark_largest(torch.tensor(values, dtype=dtype), 1).tolist() == [True, False, False]
    assert mark_largest(torch.tensor([1.0, 1.1, 0.5], dtype=dtype), 1).tolist() == [False, True, False]
    assert mark_largest(torch.zeros(3, dtype=dtype), 2).tolist() == [True, True, False]


@pytest.mark.parametrize("share", [1e-5, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("misleads", [False, True])
def test_the_largest_of_a_long_row_are_found_by_a_sample(share: float, misleads: bool) -> None:
    """Also where the sample misleads: large numbers lie where it does not look."""
    values = torch.randn(2, 70_001, generator=torch.Generator().manual_seed(1)).abs()
    if misleads:
        values[:, ::64] = 0
    count = math.ceil(share * 70_001)
    order = values.argsort(dim=1, descending=True, stable=True)[:, :count]
    assert torch.equal(mark_largest(values, count), torch.zeros_like(values, dtype=torch.bool).scatter(1, order, True))
    assert torch.equal(mark_largest(values[1], count), mark_largest(values, count)[1])


def test_ties_of_a_long_row_go_to_the_first() -> None:
    values = torch.arange(70_000) % 7
    marked = mark_largest(values.float(), 10_005)
    assert int(marked.sum()) == 10_005
    assert bool(marked[values == 6].all())
    assert marked.logical_and(values == 5).nonzero().squeeze(1).tolist() == [5, 12, 19, 26, 33]
    assert torch.equal(mark_largest(values, 10_005), marked)
