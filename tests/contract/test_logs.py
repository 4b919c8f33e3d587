"""What a module logs and the losses we log are two things, and gradient functions take a step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import batch_norm, even_data, mlp, ragged_data, train

from lfl.callbacks import FederatedCallback, Proximal
from lfl.models import Classifier
from lfl.participation import FullParticipation

ENGINES = pytest.mark.parametrize("engine", ["sequential", "vectorized"])


class Logging(Classifier):
    """Logs names that others use: ``train/loss``, and one that ends as a count would."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.log("tokens", torch.tensor(7.0))
        self.log("tokens/count", torch.tensor(3.0))
        self.log("train/loss", torch.tensor(5.0))
        return super().training_step(batch, batch_idx)


class Keep(FederatedCallback):
    """Keeps what cohorts have logged."""

    def __init__(self) -> None:
        self.cohorts: list[Any] = []

    def on_cohort_end(self, cohort: Any) -> None:
        self.cohorts.append((cohort.num_examples, cohort.losses, cohort.metrics))


@ENGINES
def test_a_modules_own_train_loss_wins(engine: str, tmp_path: Path) -> None:
    run = train([], tmp_path, Logging(mlp().backbone), engine=engine)
    assert run.summary.last("train/loss")[0] == pytest.approx(5.0, abs=1e-12)


@ENGINES
def test_names_that_look_alike_are_apart(engine: str, tmp_path: Path) -> None:
    keep = Keep()
    train([keep], tmp_path, Logging(mlp().backbone), engine=engine, max_rounds=1)
    for sizes, losses, metrics in keep.cohorts:
        expected = {"tokens": 7.0, "tokens/count": 3.0, "train/loss": 5.0}
        for name, value in expected.items():
            torch.testing.assert_close(metrics[name].total, value * sizes.double(), rtol=1e-12, atol=0)
            assert metrics[name].count.tolist() == sizes.tolist()
        assert losses.count.tolist() == sizes.tolist()
        assert not torch.equal(losses.total, metrics["train/loss"].total)


@pytest.mark.parametrize("wrapped", [lambda params: params, 3])
def test_a_gradient_function_without_a_step_is_refused(wrapped: Any, tmp_path: Path) -> None:
    class Old(FederatedCallback):
        def wrap_gradient(self, cohort: Any, gradient: Any) -> Any:
            return wrapped

    with pytest.raises(TypeError, match=r"`Old.wrap_gradient` must return a function of `\(params, step\)`, got"):
        train([Proximal(0.1), Old()], tmp_path)


def test_only_the_first_pass_of_a_step_is_logged(tmp_path: Path) -> None:
    class Twice(FederatedCallback):
        def wrap_gradient(self, cohort: Any, gradient: Any) -> Any:
            def twice(params: Tensor, step: Any) -> Tensor:
                gradients = gradient(params, step)
                gradient(params + 1, step)
                gradient(params + 2, step.with_loss_rows({}))
                return gradients

            return twice

    once, twice = (train(stack, tmp_path) for stack in ([], [Twice()]))
    assert torch.equal(once.server.vector, twice.server.vector)
    assert once.summary.last("train/loss") == twice.summary.last("train/loss")


class OwnSums(FederatedCallback):
    """Adds up under names that the loop uses, or once used."""

    NAMES = ("buffers", "counters", "uplink_bits", "count/clients", "aggregate/update", "metrics/train/loss", "losses")

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def on_cohort_end(self, cohort: Any) -> None:
        for name in self.NAMES:
            cohort.round.accumulate(name, torch.ones(3))

    def on_round_end(self, round: Any) -> None:
        self.found.append({name: value.tolist() for name, value in round.sums.items()})


@ENGINES
def test_callbacks_sums_have_names_of_their_own(engine: str, tmp_path: Path) -> None:
    """Statistics of BatchNorm included, which travel as sums of the loop's own."""
    options: dict[str, Any] = {
        "engine": engine,
        "cohort_size": 1,
        "max_rounds": 2,
        "participation": FullParticipation(),
    }
    module, data = (batch_norm, even_data) if engine == "sequential" else (mlp, ragged_data)
    sums = OwnSums()
    plain, found = (train(stack, tmp_path, module(), data(), **options) for stack in ([], [sums]))
    states = plain.server_state_dict(), found.server_state_dict()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert plain.ledger.metrics() == found.ledger.metrics()
    assert plain.summary.last("train/loss") == found.summary.last("train/loss")
    assert sums.found == [{name: [float(plain.num_clients)] * 3 for name in OwnSums.NAMES}] * 2  # one a cohort


@ENGINES
def test_both_names_are_logged_with_their_own_values(engine: str, tmp_path: Path) -> None:
    run = train([], tmp_path, Logging(mlp().backbone), engine=engine, cohort_size=2)
    assert [run.summary.last(name)[0] for name in ("tokens", "tokens/count")] == pytest.approx([7.0, 3.0], abs=1e-12)
