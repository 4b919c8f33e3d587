"""What is refused is refused before anything is made on the disk."""

from pathlib import Path
from typing import Any

import pytest
from worlds import Stock, train


def test_batch_hooks_that_are_not_called_are_named(tmp_path: Path) -> None:
    class Hooked(Stock):
        def on_train_batch_end(self, *args: Any) -> None:
            raise AssertionError

    with pytest.warns(UserWarning, match="overrides on_train_batch_end, which lfl does not call"):
        train([], tmp_path, Hooked(), max_rounds=1)
