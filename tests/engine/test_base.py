"""A device whose memory is too small for a cohort: fewer clients at a time, and the same numbers."""

from pathlib import Path

import pytest
import torch
from worlds import mlp, ragged_data, train

from lfl.callbacks import FederatedCallback, Scaffold


class SmallDevice(FederatedCallback):
    """Has memory for the gradients of so many clients."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def wrap_gradient(self, cohort, gradient):
        def limited(params, step):
            if len(params) > self.limit:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return gradient(params, step)

        return limited


def test_cohorts_are_halved_until_they_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"engine": "vectorized", "enable_progress_bar": True}
    runs = [
        train([SmallDevice(3), Scaffold()], tmp_path / str(size), mlp(), ragged_data(), cohort_size=size, **options)
        for size in (8, 2)
    ]
    assert [run.engine.cohort_size for run in runs] == [2, 2]
    # The clients of a cohort that did not fit are trained with the next ones: sums in another order, float64.
    torch.testing.assert_close(runs[0].server.vector, runs[1].server.vector, rtol=0, atol=1e-12)
    assert runs[0].ledger.up_bits == runs[1].ledger.up_bits
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Out of memory")]
    assert lines == ["Out of memory with 5 clients trained together: going on with 2."]


def test_one_client_that_does_not_fit_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        train([SmallDevice(0)], tmp_path, mlp(), ragged_data(), engine="vectorized", cohort_size=4)
