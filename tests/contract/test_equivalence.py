"""One client at a time and cohorts under vmap give the same numbers, for every method."""

from pathlib import Path
from typing import Any

import pytest
import torch
from contract.methods import METHODS, SMALL_MODELS_ONLY, dealt, train_method
from worlds import cnn, mlp, ragged_data, train

from lfl.data import RandomCrop, RandomHorizontalFlip

MODELS = {
    "mlp": mlp,
    "cnn-groupnorm": cnn,
    "mlp-dropout": lambda: mlp(dropout=0.5),
    "cnn-dropout": lambda: cnn(dropout=0.3),
}


@pytest.mark.parametrize(
    ("method", "model"), dealt(METHODS, ("mlp-dropout",), ("cnn-dropout",), ("mlp",), ("cnn-groupnorm",))
)
def test_engines_agree_in_float64(method: str, model: str, tmp_path: Path) -> None:
    vectors = []
    for engine, size in (("sequential", None), ("vectorized", 3), ("vectorized", 64)):
        trainer = train_method(method, tmp_path, MODELS[model](), engine=engine, cohort_size=size, local_epochs=2)
        vectors.append(trainer.server.vector)
    # Sums in another order: some 1e-16 a step, amplified by 3 rounds of about 20 steps.
    torch.testing.assert_close(vectors[1], vectors[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(vectors[2], vectors[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", SMALL_MODELS_ONLY)
def test_engines_agree_with_stored_bases(method: str, tmp_path: Path) -> None:
    runs = [
        train(SMALL_MODELS_ONLY[method](), tmp_path, mlp(hidden=4), engine=e, cohort_size=3)
        for e in ("sequential", "vectorized")
    ]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_engines_agree_in_float32(method: str, tmp_path: Path) -> None:
    """Float32 rounds at 6e-8; over 3 rounds of gradient steps of size 0.1 the difference stays below 1e-5."""
    runs = [
        train_method(method, tmp_path, cnn(dropout=0.3), engine=e, cohort_size=3, precision="32-true")
        for e in ("sequential", "vectorized")
    ]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-5)


@pytest.mark.parametrize("work", [{"local_steps": 7}, {"local_epochs": 3}, {"local_steps": 1}])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad", "step-schedule"])
def test_engines_agree_for_every_optimizer_and_amount_of_work(optimizer: str, work: dict, tmp_path: Path) -> None:
    """A client that is done keeps its parameters and its optimizer's state while the others go on."""

    def module():
        model = mlp(dropout=0.2)
        makers = {
            "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01),
            "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True),
            "adam": lambda: torch.optim.Adam(
                [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
                 {"params": [p for p in model.parameters() if p.ndim == 1], "lr": 0.02}], lr=0.01),
            "adagrad": lambda: torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.3),
        }  # fmt: skip

        def with_schedule():
            built = torch.optim.SGD(model.parameters(), lr=0.2)
            schedule = torch.optim.lr_scheduler.ExponentialLR(built, 0.8)
            return {"optimizer": built, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        model.configure_optimizers = makers.get(optimizer, with_schedule)
        return model

    runs = [
        train([], tmp_path, module(), engine=e, cohort_size=4, gradient_clip_val=1.0, **work)
        for e in ("sequential", "vectorized")
    ]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-9)


def test_augmentation_does_not_depend_on_the_engine(tmp_path: Path) -> None:
    runs = [
        train(
            [],
            tmp_path,
            cnn(),
            ragged_data(train_transforms=[RandomCrop(2), RandomHorizontalFlip()]),
            engine=engine,
            cohort_size=size,
            local_epochs=2,
        )
        for engine, size in (("sequential", None), ("vectorized", 2), ("vectorized", 5))
    ]
    for run in runs[1:]:
        torch.testing.assert_close(run.server.vector, runs[0].server.vector, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_logged_values_are_means_over_examples(engine: str, tmp_path: Path) -> None:
    trainer = train([], tmp_path, mlp(), engine=engine, max_rounds=1)
    reference = train([], tmp_path, mlp(), engine="sequential", max_rounds=1)
    for name in ("train/loss", "train_acc"):
        assert trainer.summary.last(name)[0] == pytest.approx(reference.summary.last(name)[0], abs=1e-12)


@pytest.mark.parametrize("model", [mlp, cnn])
def test_bf16_mixed_runs_on_both_engines_and_keeps_float32_parameters(model: Any, tmp_path: Path) -> None:
    """bf16 has 8 bits: the two orders of summation differ by some 1e-2 of a step."""
    runs = [
        train([], tmp_path, model(), engine=e, precision="bf16-mixed") for e in ("sequential", "vectorized")
    ]  # fmt: skip
    exact = train([], tmp_path, model(), precision="32-true")
    assert runs[0].server.vector.dtype == torch.float32
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=2e-2)
    torch.testing.assert_close(runs[0].server.vector, exact.server.vector, rtol=0, atol=2e-2)
    assert not torch.equal(runs[0].server.vector, exact.server.vector)
