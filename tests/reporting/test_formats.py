"""Numbers for people."""

import pytest

from lfl.reporting.formats import format_bytes, format_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999.0, "999 bytes"), (12_345, "12.3 kB"), (2e12, "2.0 TB"), (1.234e15, "1.2 PB")],
)
def test_format_bytes(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0123, "0.0123 s"),
        (59.9, "59.9 s"),
        (60.4, "0:01:00"),
        (3599.6, "1:00:00"),
        (93784, "1 day, 2:03:04"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
