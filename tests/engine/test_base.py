"""A device whose memory is too small for a cohort: fewer clients at a time, and the same numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import mlp, ragged_data, train

from lfl.callbacks import Scaffold
from lfl.engine import VectorizedEngine
from lfl.reporting.progress import ProgressDisplay

LIMIT = 3  # clients that fit


@pytest.fixture
def _small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = VectorizedEngine.gradients

    def gradients(self: VectorizedEngine, params: torch.Tensor, *arguments: Any) -> Any:
        if len(params) > LIMIT:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(self, params, *arguments)

    monkeypatch.setattr(VectorizedEngine, "gradients", gradients)


@pytest.mark.usefixtures("_small_device")
def test_cohorts_are_halved_until_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(ProgressDisplay, "message", lambda _, text: said.append(text))
    runs = [
        train([Scaffold()], tmp_path / str(size), mlp(), ragged_data(), engine="vectorized", cohort_size=size)
        for size in (8, 2)
    ]
    assert [run.engine.cohort_size for run in runs] == [2, 2]
    # The clients of a cohort that did not fit are trained with the next ones: sums in another order, float64.
    torch.testing.assert_close(runs[0].server.vector, runs[1].server.vector, rtol=0, atol=1e-12)
    assert runs[0].ledger.up_bits == runs[1].ledger.up_bits
    lines = [line for line in said if line.startswith("Out of memory")]
    assert lines == ["Out of memory with 5 clients trained together: going on with 2."]


def test_one_client_that_does_not_fit_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(VectorizedEngine, "gradients", gradients)
    with pytest.raises(torch.OutOfMemoryError):
        train([], tmp_path, mlp(), ragged_data(), engine="vectorized", cohort_size=4)
