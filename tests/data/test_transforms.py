"""Batch transforms, against loops over single examples."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lfl.data import Normalize, RandomCrop, RandomHorizontalFlip, ToFloat
from lfl.data.transforms import Pipeline
from lfl.randomness import client_keys, fold, uniform


def images(count: int = 6, channels: int = 3, height: int = 5, width: int = 7) -> torch.Tensor:
    return torch.arange(count * channels * height * width, dtype=torch.float32).reshape(count, channels, height, width)


@settings(max_examples=40, deadline=None)
@given(padding=st.integers(1, 4), seed=st.integers(0, 1000), height=st.integers(1, 6), width=st.integers(1, 6))
def test_crop_equals_cutting_one_image_at_a_time(padding, seed, height, width):
    x = images(height=height, width=width)
    u = torch.rand(6, 2, generator=torch.Generator().manual_seed(seed))
    cut = RandomCrop(padding, fill=-1.0)(x, u)
    for image, (down, right), result in zip(x, u.tolist(), cut, strict=True):
        padded = torch.full((3, height + 2 * padding, width + 2 * padding), -1.0)
        padded[:, padding : padding + height, padding : padding + width] = image
        top, left = int(down * (2 * padding + 1)), int(right * (2 * padding + 1))
        assert torch.equal(result, padded[:, top : top + height, left : left + width])


def test_crop_of_bytes_stays_bytes():
    x = images(1).to(torch.uint8)
    centre = RandomCrop(2)(x, torch.tensor([[0.5, 0.5]]))
    assert centre.dtype == torch.uint8
    assert torch.equal(centre, x)


def test_flip_mirrors_those_below_p():
    x = images(3)
    flipped = RandomHorizontalFlip(0.3)(x, torch.tensor([[0.2999], [0.3], [0.9]]))
    assert torch.equal(flipped[0], x[0].flip(-1))
    assert torch.equal(flipped[1:], x[1:])


def test_normalize_by_channel():
    x = images(2, channels=2, height=1, width=1)
    got = Normalize([1.0, 2.0], [2.0, 4.0])(x, torch.empty(2, 0))
    assert got.flatten(1).tolist() == [[-0.5, -0.25], [0.5, 0.25]]
    assert torch.equal(Normalize([1.0], [2.0])(x, torch.empty(2, 0)), (x - 1) / 2)


def test_to_float():
    none = torch.empty(1, 0)
    assert ToFloat()(torch.tensor([[0, 51, 255]], dtype=torch.uint8), none).tolist() == [[0.0, pytest.approx(0.2), 1.0]]
    x = images(1).double()
    assert ToFloat()(x, none) is x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrop(0), "`padding=0` of RandomCrop must be at least 1"),
        (lambda: RandomHorizontalFlip(1.5), "`p=1.5` of RandomHorizontalFlip must lie between 0 and 1"),
        (lambda: Normalize([0.0], [0.0]), "`mean=[0.0]` and `std=[0.0]` of Normalize need"),
        (lambda: Normalize([0.0, 1.0], [1.0]), "`mean=[0.0, 1.0]` and `std=[1.0]` of Normalize need"),
        (lambda: RandomCrop(1)(torch.zeros(2, 3), torch.rand(2, 2)), "RandomCrop needs images"),
        (lambda: Normalize([0.0], [1.0])(torch.zeros(2, 3).long(), torch.rand(2, 0)), "put ToFloat before it"),
        (lambda: Normalize([0.0] * 3, [1.0] * 3)(images(channels=1), torch.rand(6, 0)), "for 3 channels, got 1"),
        (lambda: ToFloat()(torch.zeros(2, 3).long(), torch.rand(2, 0)), "ToFloat needs uint8 inputs, got torch.int64"),
        (lambda: Pipeline([RandomCrop(1)])(images(), None), "RandomCrop(padding=1, fill=0.0) is random"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_a_pipeline_draws_by_key_and_place():
    """Transform t of the list draws from fold(key, t), whichever of the others were applied beforehand."""
    transforms = [Normalize([1.0], [2.0]), RandomCrop(2), ToFloat(), RandomHorizontalFlip()]
    x, keys = images(), client_keys(torch.arange(6), 5)
    whole = Pipeline(transforms)(x, keys)
    once, later = Pipeline(transforms).split()
    assert (len(once.transforms), len(later.transforms)) == (1, 3)
    assert torch.equal(later(once(x, None), keys), whole)
    cut = RandomCrop(2)((x - 1) / 2, uniform(fold(keys, 1), 2))
    assert torch.equal(RandomHorizontalFlip()(cut, uniform(fold(keys, 3), 1)), whole)


def test_splitting_a_batch_changes_nothing():
    pipeline = Pipeline([RandomCrop(2), RandomHorizontalFlip()])
    x, keys = images(), client_keys(torch.arange(6), 5)
    whole = pipeline(x, keys)
    assert torch.equal(torch.cat([pipeline(x[:2], keys[:2]), pipeline(x[2:], keys[2:])]), whole)
    assert not torch.equal(pipeline(x, fold(keys, 1)), whole)


def test_is_random():
    assert Pipeline([ToFloat(), RandomHorizontalFlip()]).is_random
    assert not Pipeline([ToFloat()]).is_random
