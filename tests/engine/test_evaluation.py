"""Clients that are evaluated together have the numbers that each has alone."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from worlds import SmallCNN, batch_norm, cnn, mlp, ragged_data, train

from lfl.data import FederatedDataModule, IIDPartitioner
from lfl.engine.evaluation import ClientEvaluator
from lfl.models import Classifier
from lfl.run import Run

ROUNDS: dict[str, Any] = {"max_rounds": 0}


def run_of(folder: Path, module: Any, data: FederatedDataModule | None = None, **options: Any) -> Run:
    return train([], folder, module, data or ragged_data(), **{**ROUNDS, **options}).run


def models_of(run: Run) -> Tensor:
    """Another model for every client."""
    noise = torch.randn(8, run.layout.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return run.server.vector + 0.1 * noise.to(run.server.vector)


def both(run: Run, params: Tensor, buffers: Tensor | None = None) -> tuple[Any, Any, ClientEvaluator]:
    """The clients evaluated together, one at a time, and who evaluated them together."""
    ids = torch.arange(8)
    own = run.client_buffers(ids) if buffers is None else buffers
    many, one = (ClientEvaluator(run.model, run.data, run.server, run.processes, run.seed) for _ in range(2))
    one.way = "alone"
    return many(ids, params, own), one(ids, params, own), many


def are_equal(found: Any, expected: Any, tolerance: float = 1e-12) -> bool:
    return len(found) == len(expected) and all(
        f.keys() == e.keys() and all(f[name] == pytest.approx(e[name], abs=tolerance, nan_ok=True) for name in e)
        for f, e in zip(found, expected, strict=True)
    )


class Rooted(Classifier):
    """Logs no mean over examples."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log("val_rmse", F.mse_loss(self(batch[0])[:, 0], batch[1].to(self.dtype)).sqrt())


def rooted() -> Classifier:
    return Rooted(mlp().backbone, lr=0.1)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1).unflatten(1, (8, 8))
        return self.head(self.attention(rows, rows, rows, need_weights=False)[0].flatten(1))


def attentive() -> Classifier:
    torch.manual_seed(0)
    return Classifier(Attentive(), lr=0.1)


@pytest.mark.parametrize(
    ("make", "way"),
    [(mlp, "padded"), (lambda: cnn(dropout=0.5), "padded"), (attentive, None), (rooted, "equal"), (batch_norm, None)],
)
def test_together_as_alone(make: Any, way: str | None, tmp_path: Path) -> None:
    run = run_of(tmp_path, make())
    assert int(run.data.client_test_sizes.min()) < int(run.data.client_test_sizes.max())
    found, expected, many = both(run, models_of(run))
    assert are_equal(found, expected)
    assert found[0] != found[1]
    assert list(found[0]) == list(expected[0])
    assert many.way == (way or many.way) != "alone"


@pytest.mark.parametrize(("batch_size", "way"), [(40, "padded"), (4, None)])
def test_small_batches_give_the_same(batch_size: int, way: str | None, tmp_path: Path) -> None:
    """Several passes, clients that fill one by themselves, and clients of several batches."""
    run = run_of(tmp_path, mlp(), ragged_data(eval_batch_size=batch_size))
    found, expected, many = both(run, models_of(run))
    assert are_equal(found, expected)
    assert are_equal(found, both(run_of(tmp_path, mlp()), models_of(run))[0])
    assert many.way == way


def test_one_model_of_all(tmp_path: Path) -> None:
    run = run_of(tmp_path, cnn())
    found, expected, _ = both(run, run.server.vector)
    assert are_equal(found, expected)
    assert are_equal(found, run.evaluate_clients(torch.arange(8), run.server.vector.expand(8, -1)))


def test_every_client_has_its_buffers(tmp_path: Path) -> None:
    run = run_of(tmp_path, batch_norm(), ragged_data(partitioner=IIDPartitioner()))
    buffers = run.server.buffers + torch.rand(8, len(run.server.buffers), dtype=torch.float64)
    found, expected, many = both(run, run.server.vector.expand(8, -1), buffers)
    assert are_equal(found, expected)
    assert found[0] != both(run, run.server.vector.expand(8, -1))[0][0]
    assert many.way != "alone"


def test_float32_is_equal_to_rounding(tmp_path: Path) -> None:
    run = run_of(tmp_path, cnn(), precision="32-true")
    found, expected, many = both(run, models_of(run))
    assert are_equal(found, expected, 1e-5)
    assert many.way == "padded"


def test_clients_without_test_examples_have_no_metrics(tmp_path: Path) -> None:
    run = run_of(tmp_path, mlp())
    found, expected, _ = both(run, models_of(run))
    sets = run.data.partition.test
    kept = sets.owners != 3
    fewer_sets = type(sets).from_owners(sets.owners[kept], 8, sets.indices[kept])
    run.data.partition = replace(run.data.partition, test=fewer_sets)
    fewer, alone, _ = both(run, models_of(run))
    assert fewer[3] == alone[3] == {}
    assert are_equal(fewer[:3] + fewer[4:], found[:3] + found[4:])
    assert are_equal(alone[:3], expected[:3])


class Hooked(Classifier):
    def on_validation_epoch_end(self) -> None:
        self.log("val_end", 1.0)


class Measuring(Classifier):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.mean = MeanMetric()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.mean.update(batch[0].mean())
        self.log("val_mean", self.mean)


class Counting(Classifier):
    calls = 0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.calls += 1
        super().validation_step(batch, batch_idx)


class Drawing(Classifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step((batch[0] + torch.randn(batch[0].shape), batch[1]), batch_idx)


class Branching(Classifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_sign", 1.0 if self(batch[0]).sum() > 0 else -1.0)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Hooked, "its hook `on_validation_epoch_end` is run for each"),
        (Measuring, "its validation step logs the Metric object 'val_mean'"),
        (Counting, "its validation step changes the module's attribute 'calls'"),
        (Drawing, "its validation step draws from torch's global generator"),
        (Branching, "its validation step does not run under vmap"),
    ],
)
def test_one_at_a_time_with_one_line_why(
    kind: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    run = run_of(tmp_path, kind(SmallCNN(), lr=0.1))
    with caplog.at_level(logging.INFO, "lightning"):
        found, expected, many = both(run, models_of(run))
    assert many.way == "alone"
    assert are_equal(found, expected, 0.0)
    lines = [record.getMessage() for record in caplog.records if "are evaluated one at a time" in record.getMessage()]
    assert len(lines) == 1
    assert f"The clients of {kind.__name__} are evaluated one at a time: {reason}" in lines[0]


def test_the_module_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Counting(mlp().backbone, lr=0.1)
    run = run_of(tmp_path, module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    both(run, models_of(run))
    assert module.calls == 0
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training


class Picky(Classifier):
    """Logs something else of many examples; or, where it is told to, reads values."""

    reads = False

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        if len(batch[1]) > 5:
            self.log("val_many", batch[0].mean())
        if self.reads:
            self.log("val_item", batch[0].mean().item())


def test_larger_clients_are_tried_again(tmp_path: Path) -> None:
    run = run_of(tmp_path, Picky(mlp().backbone, lr=0.1))
    small = (run.data.client_test_sizes <= 5).nonzero().squeeze(1)
    many = ClientEvaluator(run.model, run.data, run.server, run.processes, run.seed)
    many(small, models_of(run)[small], run.client_buffers(small))
    assert many.way == "padded"
    found = many(torch.arange(8), models_of(run), run.client_buffers(torch.arange(8)))
    assert are_equal(found, both(run, models_of(run))[1])
    assert many.way == "equal"


def test_a_pass_that_fails_later_is_taken_one_at_a_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Picky(mlp().backbone, lr=0.1)
    run = run_of(tmp_path, module)
    many = ClientEvaluator(run.model, run.data, run.server, run.processes, run.seed)
    ids, params = torch.arange(8), models_of(run)
    many(ids, params, run.client_buffers(ids))
    assert many.way == "equal"
    monkeypatch.setattr(Picky, "reads", True)  # the module itself holds what it held
    with caplog.at_level(logging.INFO, "lightning"):
        found = many(ids, params, run.client_buffers(ids))
    assert are_equal(found, both(run, params)[1])
    assert many.way == "alone"
    assert "evaluated one at a time: some could not be evaluated together (RuntimeError" in caplog.text


class Becoming(Classifier):
    """Logs a mean over examples at first, and then the root of one, by an attribute or by the epoch."""

    is_root = False
    by_epoch = False

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        mean = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("val_value", mean.sqrt() if self.is_root or (self.by_epoch and self.current_epoch >= 1) else mean)


@pytest.mark.parametrize("by_epoch", [False, True])
def test_a_step_that_becomes_another_is_tried_again(by_epoch: bool, tmp_path: Path) -> None:
    module = Becoming(mlp().backbone, lr=0.1)
    module.by_epoch = by_epoch
    run = run_of(tmp_path, module)
    many = ClientEvaluator(run.model, run.data, run.server, run.processes, run.seed)
    ids, params = torch.arange(8), models_of(run)
    first = many(ids, params, run.client_buffers(ids))
    assert many.way == "padded"
    module.is_root = not by_epoch
    vars(module)["_trainer"] = type("Trainer", (), {"current_epoch": 1})()
    found = many(ids, params, run.client_buffers(ids))
    assert many.way == "equal"
    expected = [{name: value**0.5 for name, value in each.items()} for each in first]
    assert are_equal(found, expected)
