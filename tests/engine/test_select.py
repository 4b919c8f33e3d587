"""Choosing an engine: what cannot be vectorized or recorded is refused with the reason."""

from pathlib import Path

import pytest
from worlds import ONE_ROUND, Strange, batch_norm, equal_data, even_data, ragged_data, train

from lfl.models import CifarResNet, Classifier


def test_vectorized_refuses_batch_norm_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`engine=vectorized` cannot train Classifier: .*running_mean"):
        train([], tmp_path, batch_norm(), even_data(), engine="vectorized", **ONE_ROUND)


def test_a_counter_in_the_step_is_reason_enough_not_to_vectorize(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="changes the buffer 'steps' in place"):
        train([], tmp_path, Strange(), ragged_data(), engine="vectorized")


def test_a_module_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot record the step of Classifier: it changes the buffer 'backbone"):
        train([], tmp_path, Classifier(CifarResNet(8, in_channels=1)), equal_data(), trace_steps=True)
