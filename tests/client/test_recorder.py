"""What steps log, as tensors and as sums."""

import numpy as np
import pytest
import torch
from torchmetrics import MeanMetric

from lfl.client.recorder import LoggedSum, Recorder


def test_sums_over_clients() -> None:
    logged = LoggedSum(torch.tensor([6.0, 1.0, 3.0]).double(), np.array([3.0, 1.0, 2.0]))
    assert logged.sum().tolist() == [10.0, 6.0]
    kept = logged.keep(torch.tensor([True, False, True]))
    assert len(kept) == 2
    assert kept.sum().tolist() == [9.0, 5.0]


def test_scalars_are_kept_until_the_next_step() -> None:
    recorder, metric = Recorder(), MeanMetric()
    recorder.log("loss", torch.tensor([2.0], requires_grad=True), on_step=True, prog_bar=True)
    recorder.log_dict({"one": 1, "size": 4.0}, batch_size=4)
    recorder.log("metric", metric)
    assert {name: value.item() for name, value in recorder.values.items()} == {"loss": 2.0, "one": 1.0, "size": 4.0}
    assert recorder.values["loss"].shape == ()
    assert not recorder.values["loss"].requires_grad
    assert recorder.batch_sizes == {"one": 4, "size": 4}
    recorder.start()
    assert (recorder.values, recorder.batch_sizes, recorder.metrics) == ({}, {}, {"metric": metric})


def test_what_is_no_mean_of_scalars_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`self.log\('a', reduce_fx='max'\)`: values are averaged over a round"):
        Recorder().log("a", 1.0, reduce_fx="max")
    with pytest.raises(TypeError, match=r"`self.log\('a', ...\)` takes a scalar, got a tensor of shape \(2,\)"):
        Recorder().log("a", torch.ones(2))
