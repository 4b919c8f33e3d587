"""A look without a GPU."""

import csv
from pathlib import Path

import pytest

from tools.benchmarks import gpu


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_look_on_the_cpu(tmp_path: Path) -> None:
    gpu.main(["--accelerator", "cpu", "--quick", "--workloads", "pfl-cifar", "--output", str(tmp_path)])
    with (tmp_path / "speed.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["engine"] for line in lines} == {"sequential", "vectorized"}
    assert {line["steps"] for line in lines} == {"plain", "recorded"}
    assert all(float(line["rounds / s"]) > 0 for line in lines)
