"""fastText."""

from pathlib import Path

import pytest
import torch
from both_engines import trained_by_both, words
from torch import nn

from lfl.models import FastText


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 30_000 * 32 + 32 * 4 + 4),
        ({"vocabulary_size": 98_635, "hidden": 32}, 98_635 * 32 + 32 * 32 + 32 + 32 * 4 + 4),  # PFLlib's on AG News
    ],
)
def test_parameter_counts(settings: dict[str, int], count: int) -> None:
    assert sum(p.numel() for p in FastText(**settings).parameters()) == count


def test_mean_is_that_of_an_embedding_bag() -> None:
    model = FastText(vocabulary_size=20, dimensions=3, num_classes=2)
    bag = nn.EmbeddingBag(20, 3, mode="mean", padding_idx=0)
    bag.weight.data.copy_(model.features.embedding.weight)
    found = model.features(words())
    torch.testing.assert_close(found, bag(words()))
    assert found[0].tolist() == [0, 0, 0]  # of no words


@pytest.mark.parametrize("hidden", [None, 5])
def test_both_engines_train_it_alike(tmp_path: Path, hidden: int | None) -> None:
    before, one, other = trained_by_both(lambda: FastText(20, 4, 3, hidden), words(), 3, tmp_path)
    torch.testing.assert_close(one, other)
    assert (one != before).sum() > 20
