"""Runs as a tidy data frame."""

import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import config_of, make_comparison, make_run

from lfl import FederatedTrainer
from lfl.callbacks import Proximal
from lfl.data import Digits, FederatedDataModule
from lfl.models import MLP, Classifier
from lfl.report import load


def test_a_row_for_each_metric_of_each_round(tmp_path: Path) -> None:
    frame = load(make_comparison(tmp_path))
    assert list(frame.columns) == ["run", "group", "seed", "state", "callbacks", "round", "metric", "value"]
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


def test_runs_that_are_not_whole_are_marked(tmp_path: Path) -> None:
    make_run(tmp_path / "whole", config=config_of(0))
    make_run(tmp_path / "running", (0.1, 0.2), config_of(1))
    metrics = make_run(tmp_path / "short", config=config_of(2)) / "metrics.csv"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]))
    frame = load(tmp_path)
    states = frame.groupby("run", observed=True)["state"].unique().map(list).to_dict()
    assert {Path(run).name: found for run, found in states.items()} == {
        "whole": ["finished"],
        "running": ["unfinished"],
        "short": ["damaged"],
    }


def test_neither_torch_nor_lightning_is_imported(tmp_path: Path) -> None:
    code = f"import sys, lfl.report\nlfl.report.load({str(make_comparison(tmp_path))!r})\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_runs_from_python_are_grouped_by_their_settings(tmp_path: Path) -> None:
    """Two methods, two seeds each, without a command line's config."""
    for seed in (0, 1):
        for name, stack in (("plain", []), ("prox", [Proximal(0.3)])):
            data = FederatedDataModule(Digits(), num_clients=20, seed=seed)
            options = {"max_rounds": 1, "seed": seed, "callbacks": stack, "enable_progress_bar": False}
            FederatedTrainer(**options, default_root_dir=tmp_path / f"{name}{seed}", checkpoint=None).fit(mlp(), data)
    frame = load(tmp_path)
    assert sorted(frame["group"].unique()) == ["FedAvg", "Proximal"]
    assert sorted(frame["seed"].unique()) == ["0", "1"]
    assert [
        name for name in frame.columns if name not in ("run", "group", "seed", "state", "round", "metric", "value")
    ] == ["callbacks"]


def mlp() -> Classifier:
    return Classifier(MLP(in_features=64, hidden=[4]), lr=0.1)
