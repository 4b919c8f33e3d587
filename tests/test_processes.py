"""Two processes share a round's clients and give the numbers of one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from methods import METHODS
from process_worker import run, summary

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += [str(TESTS / "process_worker.py"), str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_equal_one(method: str, two_processes: dict[str, Any], tmp_path: Path) -> None:
    check(two_processes[method], summary(run(method, tmp_path, devices=1)))


def test_a_run_of_two_processes_is_resumed(two_processes: dict[str, Any], tmp_path: Path) -> None:
    """Each process keeps the rows of its own clients; the checkpoint has them all."""
    check(two_processes["resumed"], summary(run("scaffold-2", tmp_path, devices=1, max_rounds=5)))


def check(two: dict[str, Any], one: dict[str, Any]) -> None:
    # Partial sums meet in another order; float64.
    torch.testing.assert_close(two["vector"], one["vector"], rtol=0, atol=1e-12)
    assert two["ledger"] == one["ledger"]
    for name in ("train/loss", "train_acc", "val_acc", "val_loss"):
        assert two[name] == pytest.approx(one[name], abs=1e-6), name
