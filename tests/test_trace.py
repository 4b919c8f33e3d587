"""Recorded steps: the same bits, and a refusal where recording would be wrong."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import cnn, mlp, ragged_data, train
from methods import METHODS, train_method
from torch import Tensor

from lfl.data import FederatedDataModule, IIDPartitioner, RandomCrop
from lfl.engine.trace import TracedStep, TraceError


def even_data(**options: Any) -> FederatedDataModule:
    """15 examples a client in batches of 5: recording takes about a second a shape, and there is one."""
    return ragged_data(partitioner=IIDPartitioner(), **options)


@pytest.mark.parametrize("method", ["fedavg", "scaffold-1", "ssf-layerwise", "fl-ssvrg"])
def test_the_same_bits(method: str, tmp_path: Path) -> None:
    assert method in METHODS
    runs = [
        train_method(
            method,
            tmp_path,
            cnn(dropout=0.3),
            even_data(train_transforms=[RandomCrop(1)]),
            engine="vectorized",
            precision="32-true",
            trace_steps=trace,
        )
        for trace in (False, True)
    ]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert runs[0].summary.last("train/loss") == runs[1].summary.last("train/loss")
    assert runs[0].summary.last("train_acc") == runs[1].summary.last("train_acc")


def test_a_step_that_reads_more_than_its_arguments_is_refused(tmp_path: Path) -> None:
    module = mlp()
    calls = []
    plain = module.training_step

    def training_step(batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        calls.append(0)
        return plain(batch, batch_idx) * (1 + 0.1 * len(calls))

    module.training_step = training_step
    with pytest.raises(TraceError, match="depends on something besides its batch and parameters"):
        train([], tmp_path, module, even_data(), engine="vectorized", trace_steps=True)


def test_every_shape_is_recorded_and_checked_once() -> None:
    calls = []

    def step(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        calls.append(tuple(x.shape))
        return x.sin() + 1, x.sum(), {"mean": x.mean()}

    traced = TracedStep(step)
    for size in (3, 4, 3, 3, 4, 4, 3):
        x = torch.rand(size)
        gradients, losses, logs = traced(x)
        assert torch.equal(gradients, x.sin() + 1)
        assert torch.equal(losses, x.sum())
        assert torch.equal(logs.pop("mean"), x.mean())
        assert not logs
    # Recorded, computed, and compared: three calls a shape, however often it comes.
    assert sorted(calls) == [(3,)] * 3 + [(4,)] * 3


def test_results_may_be_written_into_and_what_the_module_holds_may_change() -> None:
    held = torch.tensor([1.0, 2.0])

    def step(x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        # A constant, an argument and a view of one: none of them may be handed out as it is.
        return torch.ones_like(x) * 3, x.view(2), {"held": x * (held + 1)}

    traced = TracedStep(step)
    x = torch.tensor([5.0, 6.0])
    for round_number in range(5):
        held.fill_(float(round_number))
        gradients, losses, logs = traced(x)
        assert gradients.tolist() == [3.0, 3.0]
        assert losses.tolist() == [5.0, 6.0]
        assert logs["held"].tolist() == [5.0 * (round_number + 1), 6.0 * (round_number + 1)]
        if round_number > 1:
            gradients.zero_()
            losses.zero_()
        assert x.tolist() == [5.0, 6.0]


def test_needs_the_vectorized_engine(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`trace_steps=true` needs the vectorized engine"):
        train([], tmp_path, engine="sequential", trace_steps=True)
