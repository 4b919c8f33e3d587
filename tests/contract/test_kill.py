"""Killed runs equal an unbroken one; what differs is named."""

import csv
from pathlib import Path

import pytest
import torch
from kill import differing, main


def test_killed_runs_equal_an_unbroken_one(tmp_path: Path) -> None:
    arguments = ["--methods", "SCAFFOLD", "--engines", "sequential", "--states", "memmap", "--kills", "3"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--rounds", "6", "--output", str(tmp_path)])
    assert ended.value.code == 0
    with (tmp_path / "table.csv").open(newline="") as file:
        (line,) = csv.DictReader(file)
    assert (line["kills"], line["differs"]) == ("3", "nothing")


def test_what_differs_between_checkpoints_is_named() -> None:
    one = {"a": [torch.tensor([0.0, 1.0])], "nan": float("nan"), "seconds": 1.0, "only": 1}
    other = {"a": [torch.tensor([-0.0, 1.0])], "nan": float("nan"), "seconds": 2.0}
    assert differing(one, one) == []
    assert differing(one, other) == ["a/0", "only"]
    assert differing(other, one) == ["a/0", "only"]
