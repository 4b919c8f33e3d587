"""The C library is told to keep freed memory, where it is one that can be told."""

import ctypes
import sys
from types import SimpleNamespace

import pytest

from lfl.cli.allocator import keep_freed_memory


@pytest.mark.parametrize(
    ("largest", "calls"), [(2**30, [(-3, 2**30), (-1, 2**29)]), (2**25, [(-3, 2**30), (-3, 2**25), (-1, 2**29)])]
)
def test_the_largest_block_that_is_accepted(
    largest: int, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def mallopt(number: int, value: int) -> int:
        told.append((number, value))
        return int(value <= largest)

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    keep_freed_memory()
    assert told == calls


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: opened.append(name) or SimpleNamespace())
    monkeypatch.setattr(sys, "platform", "linux")
    keep_freed_memory()  # without `mallopt`
    monkeypatch.setattr(sys, "platform", "darwin")
    keep_freed_memory()
    assert opened == [None]
