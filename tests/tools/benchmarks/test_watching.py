"""A look at what watching costs."""

import re

import pytest

from tools.benchmarks import watching


@pytest.mark.slow
def test_a_look(capsys: pytest.CaptureFixture[str]) -> None:
    watching.main(["many-small", "--rounds", "2", "--pairs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(
        re.fullmatch(r"many-small, \w+, \w+: with / without \d.*, share of watching \d+\.\d\d %", line)
        for line in lines
    )
