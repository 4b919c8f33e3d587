"""Fixtures of all tests; what tests import is in ``worlds.py``."""

import os

# Before torch is imported: of this process and of those that tests start. Two processes at once, each with a thread for
# every core, mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from pathlib import Path

import pytest
import torch
from cli_world import World
from worlds import Clock


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests are small: more threads cost more than they give, and two processes may run at once."""
    torch.set_num_threads(1)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    """A folder with a small config, in which ``lfl`` is called."""
    return World(tmp_path, monkeypatch, capsys)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stands in for the monotonic clock."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock
