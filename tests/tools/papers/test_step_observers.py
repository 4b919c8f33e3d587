"""What local steps take, by hand."""

from pathlib import Path

import pytest
import torch
from worlds import train

from lfl.callback import FederatedCallback
from lfl.callbacks import SSF, Scaffold
from lfl.loggers.csv import read_rows
from lfl.participation import FullParticipation
from lfl.problems import MatrixRegression, MatrixRegressionData
from lfl.storage.folders import METRICS_FILE, TIMING_FILE
from lfl.subspace import LayerwiseSubspace
from tools.papers import step_observers
from tools.papers.step_observers import MILLISECONDS, PEAK, MemoryWatch, StepClock, StepMemory

DIM, OUTPUTS = 40, 30
D = DIM * OUTPUTS


def test_what_is_read_and_what_lives_at_the_same_time() -> None:
    """x [1000] is read, in numbers of 4 bytes. The graph keeps y = exp(x) for the gradient, which is as large; y.sum()
    is one number, its own gradient another one, which is spread without a copy. All is given back."""
    x = torch.randn(1000, requires_grad=True)
    with MemoryWatch() as watch:
        total = x.exp().sum()
        (gradient,) = torch.autograd.grad(total, x)
        del total, gradient
    assert [memory.nbytes() for memory in watch.read] == [4000]
    assert watch.peak == 4000 + 4000 + 2 * 4
    assert not watch._made


def test_views_are_no_memory_of_their_own() -> None:
    x = torch.randn(10, 10)
    with MemoryWatch() as watch:
        kept = x.T[:5].reshape(-1)  # a copy of 50
        kept.add_(1.0)
        x.view(-1).mul_(2.0)
    assert [memory.nbytes() for memory in watch.read] == [400]
    assert watch.peak == 200


def memory(callbacks: list[FederatedCallback], folder: Path) -> dict[str, float]:
    """Numbers (of 8 bytes) of a step on a problem of [40, 30], of which each client has 6 examples in one batch."""
    data = MatrixRegressionData(2, 6, DIM, OUTPUTS, batch_size=6)
    options = {"participation": FullParticipation(), "local_steps": 2, "max_rounds": 1, "trace_steps": False}
    trainer = train([*callbacks, StepMemory()], folder, MatrixRegression(DIM, OUTPUTS), data, **options)
    ((_, metrics),) = read_rows(Path(str(trainer.log_dir)) / METRICS_FILE)
    return {name.removeprefix("memory/"): value / 8 for name, value in metrics.items() if name.startswith("memory/")}


def test_parts_of_a_step_by_hand(tmp_path: Path) -> None:
    """FedAvg reads its own model; SCAFFOLD one vector beside it; SSF x, and of r = 10 of 40 rows z, P and P c - P c_i.

    A whole vector more is read by SCAFFOLD than by FedAvg, and by SSF its own three parts; all make the same model and
    gradients, of which SSF makes its model itself, where the others read theirs.
    """
    fedavg, scaffold, ssf = (memory(stack, tmp_path) for stack in ([], [Scaffold()], [SSF(LayerwiseSubspace(10))]))
    none = {"coordinates": 0.0, "basis": 0.0}
    small = 2.0  # a client's key, and the like
    assert {k: v for k, v in fedavg.items() if k in none} == none
    assert fedavg["model"] == scaffold["model"] == ssf["model"] == D
    assert fedavg["controls"] <= small
    assert scaffold["controls"] == pytest.approx(D, abs=small)
    assert ssf["controls"] == pytest.approx(10 * OUTPUTS, abs=small)
    assert (ssf["coordinates"], ssf["basis"]) == (10 * OUTPUTS, 10 * DIM)
    assert scaffold["peak"] - fedavg["peak"] == D
    assert ssf["peak"] - fedavg["peak"] >= D + 2 * 10 * OUTPUTS + 10 * DIM
    assert PEAK == "memory/peak"


def test_a_step_takes_what_the_clock_of_the_process_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is 1, 2, 4, 8, ...: a client of two steps has it at its start and after each. The first two clients'
    steps take 1 + 2 and 8 + 16 seconds, so that four steps have a mean of 27 / 4."""
    ticks = iter(2.0**n for n in range(100))
    monkeypatch.setattr(step_observers.time, "process_time", lambda: next(ticks))
    data = MatrixRegressionData(2, 6, 4, 3, batch_size=6)
    options = {"participation": FullParticipation(), "local_steps": 2, "max_rounds": 1}
    trainer = train([StepClock()], tmp_path, MatrixRegression(4, 3), data, **options)
    rows = [metrics for name in (METRICS_FILE, TIMING_FILE) for _, metrics in read_rows(Path(trainer.log_dir) / name)]
    assert [metrics[MILLISECONDS] for metrics in rows if MILLISECONDS in metrics] == [1000 * 27 / 4]
