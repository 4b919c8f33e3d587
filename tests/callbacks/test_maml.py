"""MAML: steps by hand, its batches, and what it leaves alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from quadratics import Spy, quadratic_data
from torch import Tensor
from worlds import Quadratic, QuadraticData, equal_data, mlp, ragged_data, train, train_quadratic

from lfl.callbacks import MAML, SSF, FederatedCallback
from lfl.subspace import IdentitySubspace

ENGINES = ["sequential", "vectorized"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("first_order", "expected"), [(True, -0.035), (False, -0.0235)])
def test_a_step_of_two_clients_by_hand(first_order: bool, expected: float, engine: str, tmp_path: Path) -> None:
    """``a/2 (y - b)^2`` with (a, b) = (1, 1) and (2, -1), y = 0, alpha = beta = 0.1.

    Client 1: g = -1, y' = 0.1, g' = -0.9; the Hessian times g' is -0.9, so -0.9 + 0.09 = -0.81. Client 2: g = 2,
    y' = -0.2, g' = 1.6; h = 3.2, so 1.6 - 0.32 = 1.28. First order: x = -0.1 (1.6 - 0.9) / 2 = -0.035; with the Hessian
    x = -0.1 (1.28 - 0.81) / 2 = -0.0235.
    """
    data = quadratic_data([[1.0], [2.0]], [[1.0], [-1.0]])
    options = {"max_rounds": 1, "local_steps": 1, "module": Quadratic(dim=1), "data": data, "engine": engine}
    trainer, _ = train_quadratic([MAML(0.1, first_order)], tmp_path, **options)
    assert trainer.server.vector.tolist() == pytest.approx([expected], abs=1e-12)


@pytest.mark.parametrize("relative", [False, True])
def test_on_quadratics_it_is_exact(relative: bool, tmp_path: Path) -> None:
    """``(I - alpha A) A (y - alpha g - b)``, whatever the length of the differences."""
    trainer, data = train_quadratic(
        [MAML(0.2, delta=0.5, relative_delta=relative)], tmp_path, max_rounds=1, local_steps=3
    )
    y = torch.zeros_like(data.centre)
    for _ in range(3):
        adapted = y - 0.2 * data.curvature * (y - data.centre)
        y = y - 0.1 * (1 - 0.2 * data.curvature) * data.curvature * (adapted - data.centre)
    torch.testing.assert_close(trainer.server.vector, y.mean(0), rtol=0, atol=1e-12)


def test_where_the_gradient_is_zero_it_stays(tmp_path: Path) -> None:
    data = quadratic_data([[1.0, 2.0]], [[0.0, 0.0]])
    options = {"module": Quadratic(dim=2), "data": data}
    trainer, _ = train_quadratic([MAML(0.1, relative_delta=True)], tmp_path, **options)
    assert trainer.server.vector.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("engine", ENGINES)
def test_alpha_zero_is_fedavg_bit_for_bit(engine: str, tmp_path: Path) -> None:
    runs = [train(s, tmp_path, mlp(dropout=0.3), engine=engine) for s in ([], [MAML(0.0)])]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)


class Unmoved(FederatedCallback):
    """Behind a callback: the rows that it was given are what they were when it is done."""

    def __init__(self) -> None:
        self.steps = 0

    def wrap_gradient(self, cohort: Any, gradient: Any) -> Any:
        def checked(params: Tensor, step: Any) -> Tensor:
            before = params.clone()
            found = gradient(params, step)
            assert torch.equal(params, before)
            self.steps += 1
            return found

        return checked


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_are_where_they_were_and_passes_are_counted(engine: str, tmp_path: Path) -> None:
    for first_order, passes in ((True, 2), (False, 4)):
        spy, unmoved = Spy(), Unmoved()
        train([spy, MAML(0.1, first_order), unmoved], tmp_path, engine=engine, cohort_size=3, max_rounds=1)
        assert len(spy.points) == passes * unmoved.steps
        for start, adapted, gradient in zip(
            spy.points[::passes], spy.points[1::passes], spy.gradients[::passes], strict=True
        ):
            torch.testing.assert_close(adapted, start - 0.1 * gradient, rtol=0, atol=1e-15)
    for start, meta, ahead, behind in zip(*(spy.points[i::4] for i in (0, 2, 2, 3)), strict=True):
        torch.testing.assert_close((ahead + behind) / 2, start, rtol=0, atol=1e-12)
        assert not torch.equal(meta, start)


class Batches(FederatedCallback):
    """First in a stack: the examples of every pass."""

    def __init__(self) -> None:
        self.seen: list[list[list[int]]] = []

    def wrap_gradient(self, cohort: Any, gradient: Any) -> Any:
        def seen(params: Tensor, step: Any) -> Tensor:
            self.seen.append([row for part in step.batches for row in part.plan.indices.tolist()])
            return gradient(params, step)

        return seen


@pytest.mark.parametrize("engine", ENGINES)
def test_its_three_batches_are_independent(engine: str, tmp_path: Path) -> None:
    plain, spy = Batches(), Batches()
    options = {"engine": engine, "cohort_size": 4, "max_rounds": 1}
    train([plain], tmp_path, mlp(), equal_data(), **options)
    train([spy, MAML(0.1)], tmp_path, mlp(), equal_data(), **options)
    first, second, third, fourth = (spy.seen[i::4] for i in range(4))
    assert first == plain.seen  # a run's own batches are what they are without it
    assert third == fourth  # both ends of a finite difference
    assert first != second != third != first
    for batches in (second, third):
        assert {i for step in batches for row in step for i in row} == {i for s in first for row in s for i in row}


@pytest.mark.parametrize("first_order", [True, False])
def test_engines_and_recordings_agree_with_ragged_clients(first_order: bool, tmp_path: Path) -> None:
    def vector(data: Any, **options: Any) -> Tensor:
        trainer = train([MAML(0.1, first_order)], tmp_path, mlp(dropout=0.3), data, max_rounds=2, **options)
        return trainer.server.vector

    alone = vector(ragged_data())
    torch.testing.assert_close(vector(ragged_data(), engine="vectorized", cohort_size=3), alone, rtol=0, atol=1e-10)
    for engine in ENGINES:
        options = {"engine": engine, "local_steps": 4}
        recorded = vector(equal_data(), trace_steps=True, **options)
        torch.testing.assert_close(recorded, vector(equal_data(), **options), rtol=0, atol=1e-12)


def test_the_logged_loss_is_that_before_the_adaptation(tmp_path: Path) -> None:
    runs = [train(s, tmp_path, mlp(), max_rounds=1, local_steps=1) for s in ([], [MAML(0.5)])]
    assert runs[0].summary.last("train/loss") == runs[1].summary.last("train/loss")


def test_refuses_coordinates_before_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"behind SSF .* put MAML before SSF"):
        train([SSF(IdentitySubspace()), MAML()], tmp_path)
    with pytest.raises(ValueError, match="`delta=0` of MAML must be a number greater than 0"):
        MAML(delta=0)


def test_reaches_a_model_that_adapts_well(tmp_path: Path) -> None:
    """The fixed point on quadratics: ``sum_i (1 - alpha a_i)^2 a_i (x - b_i) = 0``, with one step a round."""
    options = {"engine": "vectorized", "local_steps": 1, "max_rounds": 400, "module": Quadratic(lr=0.5)}
    trainer, data = train_quadratic([MAML(0.3)], tmp_path, data=QuadraticData(), **options)
    weights = (1 - 0.3 * data.curvature).square() * data.curvature
    optimum = (weights * data.centre).sum(0) / weights.sum(0)
    torch.testing.assert_close(trainer.server.vector, optimum, rtol=0, atol=1e-8)
