"""Fixtures of all tests; what tests import is in ``worlds.py``."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests are small: more threads cost more than they give, and two processes may run at once."""
    torch.set_num_threads(1)
