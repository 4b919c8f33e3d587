"""Runs as a tidy data frame."""

import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import make_comparison

from lfl.report import load


def test_a_row_for_each_metric_of_each_round(tmp_path: Path) -> None:
    frame = load(make_comparison(tmp_path))
    assert list(frame.columns) == ["run", "group", "seed", "callbacks", "round", "metric", "value"]
    accuracy = frame[frame.metric == "val_acc"]
    assert accuracy[accuracy["run"] == str(tmp_path / "fedprox" / "run_001")]["value"].tolist() == [0.2, 0.7, 0.9]
    last = accuracy[accuracy["round"] == 4].groupby("group", observed=True)["value"].mean()
    assert last.to_dict() == {"FedAvg": pytest.approx(0.5), "Proximal": pytest.approx(0.85)}
    assert len(frame) == 4 * (4 * 6 + 3 + 4 * 2)
    assert set(frame["callbacks"]) == {"FedAvg", "lfl.callbacks.Proximal"}


def test_several_paths(tmp_path: Path) -> None:
    make_comparison(tmp_path)
    frame = load([tmp_path / "fedavg" / "run_000", tmp_path / "fedprox"])
    assert frame["run"].nunique() == 3


def test_neither_torch_nor_lightning_is_imported(tmp_path: Path) -> None:
    code = f"import sys, lfl.report\nlfl.report.load({str(make_comparison(tmp_path))!r})\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
