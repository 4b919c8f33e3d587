"""The hyperbolic term of FedMRUR: its distance, what it does to features, and what is measured of it."""

import math
from pathlib import Path

import pytest
import torch
from contract.methods import fedmrur
from quadratics import Spy
from torch import Tensor
from worlds import (
    ONE_ROUND,
    BatchNormNet,
    Bystander,
    cnn,
    even_data,
    mlp,
    train,
)

from lfl.callbacks import HyperbolicRegularization
from lfl.callbacks.hyperbolic import squared_lorentz_distance
from lfl.models import Classifier

ENGINES = ["sequential", "vectorized"]


@pytest.mark.parametrize("engine", ENGINES)
def test_measuring_changes_nothing(engine: str, tmp_path: Path) -> None:
    options = {"engine": engine, "cohort_size": 3, "precision": "32-true"}
    runs = [train(fedmrur(measure_every_n_rounds=m), tmp_path, mlp(dropout=0.3), **options) for m in (1, 0)]
    assert torch.equal(runs[0].server.vector, runs[1].server.vector)
    assert runs[0].summary.last("train/loss") == runs[1].summary.last("train/loss")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_term_has_no_gradient_at_x(engine: str, tmp_path: Path) -> None:
    options = {"engine": engine, "max_rounds": 1, "local_steps": 1}
    runs = [train([HyperbolicRegularization("backbone", g)], tmp_path, cnn(), **options) for g in (0.0, 5.0)]
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-13)
    losses = [run.summary.last("train/loss")[0] for run in runs]
    assert losses[1] - losses[0] == pytest.approx(5.0, abs=1e-12)  # R = 1
    assert runs[1].summary.last("hyperbolic/distance")[0] == pytest.approx(0.0, abs=1e-24)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_it_keeps_features_near(reduction: str, tmp_path: Path) -> None:
    distances = []
    for gamma in (1e-9, 0.05, 0.2):
        term = HyperbolicRegularization("backbone", gamma, sigma=20.0, reduction=reduction)
        trainer = train([term], tmp_path, cnn(), local_epochs=3, max_rounds=2)
        distances.append(trainer.summary.last("hyperbolic/distance")[0])
    assert distances[0] > 1.15 * distances[1] > 1.15 * 1.15 * distances[2] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_measured_step_is_the_last_one(engine: str, tmp_path: Path) -> None:
    """Two passes more in one step of every cohort; the ratio is zero where clients have one step, from x."""
    spy = Spy()
    options = {"engine": engine, "cohort_size": 64, "max_rounds": 1, "local_steps": 3}
    trainer = train([spy, *fedmrur(rho=0.0)], tmp_path, cnn(), **options)
    passes = [float(points.sum()) for points in spy.points[:5]]
    assert len(set(passes)) == 3
    assert passes[2:] == [passes[2]] * 3
    assert trainer.summary.last("hyperbolic/gradient_ratio")[0] > 1e-3
    trainer = train(fedmrur(rho=0.0), tmp_path, cnn(), engine=engine, max_rounds=1, local_steps=1)
    assert trainer.summary.last("hyperbolic/gradient_ratio")[0] == pytest.approx(0.0, abs=1e-12)


def test_the_measured_clients_do_not_depend_on_cohorts(tmp_path: Path) -> None:
    """The half of a round's clients with more steps is measured, in its last common step."""

    class Norms(Bystander):
        def __init__(self) -> None:
            self.steps, self.found = dict[int, int](), dict[int, list[float]]()

        def on_cohort_end(self, cohort) -> None:
            rows = cohort.rows.get("hyperbolic/norms", torch.full((len(cohort), 2), math.nan))
            self.steps |= dict(zip(cohort.ids.tolist(), cohort.num_steps.tolist(), strict=True))
            self.found |= dict(zip(cohort.ids.tolist(), rows.tolist(), strict=True))

    runs = []
    for engine, size in (("sequential", None), ("vectorized", 2), ("vectorized", 64)):
        norms = Norms()
        trainer = train([*fedmrur(), norms], tmp_path, cnn(), max_rounds=1, engine=engine, cohort_size=size)
        rows = torch.tensor([norms.found[client] for client in sorted(norms.found)])
        steps = torch.tensor([norms.steps[client] for client in sorted(norms.steps)])
        assert torch.equal(rows.isnan().all(dim=1), steps < steps.median())
        term, loss = rows.nansum(dim=0)
        assert trainer.summary.last("hyperbolic/gradient_ratio")[0] == pytest.approx(float(term / loss))
        runs.append(rows)
    assert 0 < runs[0].isnan().sum() < runs[0].numel()
    for rows in runs[1:]:
        torch.testing.assert_close(rows, runs[0], rtol=1e-9, atol=0, equal_nan=True)


def test_what_is_far_is_clamped_counted_and_warned_of_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"of the examples of round 1 are further than 80 sigma") as caught:
        trainer = train([HyperbolicRegularization("backbone", 1e-40, sigma=1e-8)], tmp_path, cnn(), local_epochs=2)
    assert len(caught) == 1
    assert 0 < trainer.summary.last("hyperbolic/clamped")[0] <= 1
    assert trainer.server.vector.isfinite().all()


def test_batch_norm_sees_a_batch_once_although_it_is_measured(tmp_path: Path) -> None:
    states = []
    for stack in ([], [HyperbolicRegularization("backbone", 0.5)]):
        torch.manual_seed(0)
        trainer = train(stack, tmp_path, Classifier(BatchNormNet(), lr=0.1), even_data(batch_size=5), **ONE_ROUND)
        states.append(trainer.server_state_dict())
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(states[0][f"backbone.norm.{name}"], states[1][f"backbone.norm.{name}"]), name


def test_a_layer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^`layer=penultimate` of HyperbolicRegularization names no submodule of"):
        train([HyperbolicRegularization("penultimate")], tmp_path)
    with pytest.raises(ValueError, match="`reduction=max`"):
        HyperbolicRegularization("backbone", reduction="max")


NORMS = [0.0, 1e-4, 1.0, 30.0, 1e2, 1e4]


def pairs(norm: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Vectors of a norm, with others: near, radially near, double, opposite, zero, unrelated, equal."""
    draws = torch.Generator().manual_seed(0)
    a, other = (torch.nn.functional.normalize(torch.randn(16, generator=draws).double(), dim=0) for _ in range(2))
    a = norm * a
    others = [a + 1e-2 * other, a * (1 + 1e-3), 2 * a, -a, 0 * a, other, norm * other, a]
    return a.to(dtype).expand(len(others), -1), torch.stack(others).to(dtype)


def exact(a: Tensor, b: Tensor, beta: float) -> Tensor:
    """The printed form, in integers: inputs and square roots to 2^-400."""
    unit = 2**400
    found = []
    for u, v in zip(a.tolist(), b.tolist(), strict=True):
        p, q = ([int(x * 2**200) * 2**200 for x in w] for w in (u, v))
        scaled_beta = int(beta * 2**200) * 2**200
        roots = [math.isqrt(scaled_beta * unit + sum(x * x for x in w)) for w in (p, q)]
        inner = sum(x * y for x, y in zip(p, q, strict=True)) - roots[0] * roots[1]
        found.append(-2 * (scaled_beta * unit + inner) / unit**2)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("beta", [1e-3, 1.0, 10.0])
@pytest.mark.parametrize("norm", NORMS)
def test_distance_is_right_to_the_last_digits_of_float32(norm: float, beta: float) -> None:
    a, b = pairs(norm)
    found = squared_lorentz_distance(a, b, beta)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact(a, b, beta), rtol=1e-6, atol=1e-40)
    assert (found >= 0).all()
    assert found[-1] == 0
    assert torch.equal(found, squared_lorentz_distance(b, a, beta))
    assert (found <= (a - b).double().square().sum(dim=1) * (1 + 1e-6)).all()


@pytest.mark.parametrize("norm", NORMS)
def test_gradient_of_the_distance_is_the_closed_form(norm: float) -> None:
    """``2 (b_0 / a_0) a - 2 b``, also where a = b, a = -b, or one is zero; under vmap too."""
    a, b = pairs(norm)
    lifts = [(1.0 + z.double().square().sum(dim=1, keepdim=True)).sqrt() for z in (a, b)]
    expected = 2 * lifts[1] / lifts[0] * a.double() - 2 * b.double()
    a = a.clone().requires_grad_()
    (found,) = torch.autograd.grad(squared_lorentz_distance(a, b).sum(), a)
    # The closed form itself subtracts numbers of the size of the norm.
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-14 * max(norm, 1.0))
    assert found[-1].abs().max() == 0
    mapped = torch.func.vmap(torch.func.grad(squared_lorentz_distance))(a.detach(), b)
    torch.testing.assert_close(mapped, found, rtol=1e-6, atol=1e-14 * max(norm, 1.0))


def test_gradient_of_the_distance_against_differences() -> None:
    a, b = (torch.randn(3, 5, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    assert torch.autograd.gradcheck(lambda a, b: squared_lorentz_distance(a, b, 0.5), (a.requires_grad_(), b))


def test_types() -> None:
    a, b = pairs(300.0)
    for dtype, expected in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float64, torch.float64),
    ):
        found = squared_lorentz_distance(a.to(dtype), b.to(dtype))
        assert found.dtype == expected
        assert found.isfinite().all()


def test_a_doubled_norm_is_near() -> None:
    """z = (3, 4) and 2 z: ``-2 + 2 (sqrt(26) sqrt(101) - 50)``."""
    z = torch.tensor([3.0, 4.0])
    expected = -2 + 2 * (math.sqrt(26 * 101) - 50)
    assert float(squared_lorentz_distance(z, 2 * z)) == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(0.49, abs=0.01)
